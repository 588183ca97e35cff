"""`--speculative-config`, as vLLM spells it: what guesses tokens ahead, and how many."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.config.option import Options, option

METHODS = ("auto", "none", "ngram", "suffix", "mtp", "draft", "eagle3")
"""What `method` may be."""
_OTHER_METHODS = {
    "ngram_gpu": "ngram",
    "ngram-simple": "ngram",
    "ngram-map-k": "suffix",
    "ngram-map-k4v": "suffix",
    "ngram-mod": "suffix",
    "ngram-cache": "suffix",
    "draft_model": "draft",
    "draft-simple": "draft",
    "draft-mtp": "mtp",
    "draft-eagle3": "eagle3",
    "eagle": "eagle3",
}
"""Other names, as vLLM and llama-server have them; so is each that ends in `_mtp`."""
_COUNTS = {
    "num_speculative_tokens": (0, 64),
    "min_speculative_tokens": (0, 64),
    "prompt_lookup_min": (1, 32),
    "prompt_lookup_max": (1, 32),
}
_OF_OTHERS = (
    "disable_by_batch_size", "disable_logprobs", "disable_padded_drafter_batch",
    "draft_tensor_parallel_size", "enforce_eager", "max_model_len", "quantization",
    "rejection_sample_method", "speculative_token_tree", "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth",
    "suffix_decoding_min_token_prob", "tensor_parallel_size",
)  # fmt: skip
"""vLLM's keys that change nothing here: what is guessed is weighed in each step."""
_PAIRS = (
    ("min_speculative_tokens", "num_speculative_tokens"),
    ("prompt_lookup_min", "prompt_lookup_max"),
)
"""The least and the most of the same."""
MODES = ("auto", "stable", "fast")
_KEYS = ("method", "model", "mode", *_COUNTS)


def parse_speculative_config(text: str) -> dict[str, object]:
    """A JSON object with the keys above. ConfigError names what is wrong."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("write a JSON object")
    return checked(value)


def checked(value: Mapping[str, Any]) -> dict[str, object]:
    """The same, of what was parsed already."""
    given: dict[str, object] = {}
    for key, entry in value.items():
        if key == "method":
            given[key] = _method(entry)
        elif key in _COUNTS:
            low, high = _COUNTS[key]
            if type(entry) is not int or not low <= entry <= high:
                raise ConfigError(f"{key} is {entry!r}; it takes a number from {low} to {high}.")
            given[key] = entry
        elif key == "mode":
            given[key] = _mode(entry)
        elif key == "model":
            given[key] = str(entry)
        elif key not in _OF_OTHERS:
            raise ConfigError(f"{key!r} is not known; known are {', '.join(_KEYS)}.")
    return given


def _method(name: object) -> str:
    method = str(name).lower()
    method = "mtp" if method.endswith("_mtp") else _OTHER_METHODS.get(method, method)
    if method not in METHODS:
        raise ConfigError(f"the method {name!r} is not known; it is one of {', '.join(METHODS)}.")
    return method


def _mode(name: object) -> str:
    if name not in MODES:
        raise ConfigError(f"the mode {name!r} is not known; it is one of {', '.join(MODES)}.")
    return str(name)


@dataclass(frozen=True)
class SpeculationConfig(Options):
    """Tokens that are guessed and verified several in a step. Replies stay the same."""

    speculative_config: dict[str, object] = option(
        None,
        'JSON that says what guesses tokens ahead, such as {"method": "suffix", '
        '"num_speculative_tokens": 8}. Methods: `suffix` repeats what stood in the request or in '
        "recent replies, `ngram` in the request alone, with `prompt_lookup_min` and "
        "`prompt_lookup_max` tokens in common; `mtp` asks the checkpoint's draft head, for as many "
        "tokens as `mode` (auto, stable, fast) says; `draft` asks a smaller `model` with the same "
        "tokenizer, and `eagle3` the EAGLE-3 head that `model` names; `none` guesses nothing; "
        "`auto` is `suffix` on a CPU. As many guesses are verified as make replies faster, at most "
        "`num_speculative_tokens`, and none where there are fewer than "
        "`min_speculative_tokens`. Flags of vLLM and llama-server set its keys: `--spec-method`, "
        "`--spec-type`, `--mode`, `--draft-max`, `--draft-min`, `-md`.",
        aliases=("-sc",),
        parse=parse_speculative_config,
        factory=dict,
    )

    @property
    def method(self) -> str:
        """As asked for; a model without a method is one that drafts."""
        method = "draft" if "model" in self.speculative_config else "auto"
        return str(self.speculative_config.get("method", method))

    @property
    def model(self) -> str:
        """What drafts, as any model is named; empty where the model itself or its text does."""
        return str(self.speculative_config.get("model", ""))

    @property
    def has_mode(self) -> bool:
        """A mode was asked for."""
        return "mode" in self.speculative_config

    @property
    def mode(self) -> str:
        """How many tokens a draft head guesses."""
        return str(self.speculative_config.get("mode", "auto"))

    def check(self) -> None:
        """ConfigError for what no model could make true; asked before an engine is started for
        nothing, and by the engine."""
        if self.method == "draft" and not self.model and self.count("num_speculative_tokens", 1):
            raise ConfigError(
                'The method "draft" needs a model that drafts: name it as "model" in '
                "--speculative-config, or with --model-draft."
            )
        for low, high in _PAIRS:
            if not {low, high} <= self.speculative_config.keys():
                continue
            least, most = self.count(low, 0), self.count(high, 0)
            if 0 < most < least:
                raise ConfigError(
                    f"--speculative-config has {low} {least} and {high} {most}; raise the second "
                    "or lower the first."
                )

    def count(self, key: str, default: int) -> int:
        """A number of tokens."""
        value = self.speculative_config.get(key, default)
        assert isinstance(value, int)  # checked when it was parsed
        return value
