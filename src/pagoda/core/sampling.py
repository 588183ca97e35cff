"""What a caller asks of the sampler."""

import sys
from typing import Annotated, Any

import msgspec

from pagoda.base.errors import RequestError
from pagoda.config.sampling import (
    DRY_BREAKERS,
    ENGINE_ORDER,
    MAX_INT,
    NUMBERS,
    SAMPLERS,
    neutral,
    sampler_order,
)
from pagoda.core.structured import StructuredOutputsParams

MAX_LOGIT_BIAS = 100.0
_BESIDE_MIROSTAT = ("penalties", "dry", "temperature")


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True, dict=True):
    """How tokens are chosen and when generation ends; names and meanings are vLLM's.

    The public class of `pagoda.SamplingParams`, and the wire form of the same thing.
    Raises RequestError, naming the field, for values outside their range.
    """

    n: int = 1
    """Completions per prompt; they share the prompt's KV blocks."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token already generated, -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted for each time the token was generated, -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides (or multiplies, if negative) the logits of tokens in prompt and output. From 0.01
    to 100: beyond that, fp32 logits overflow or all become 0."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 keeps all tokens."""
    min_p: float = 0.0
    """Keeps tokens at least this probable relative to the most probable one."""
    top_n_sigma: float = 0.0
    """Keeps tokens whose logits are within so many standard deviations of the largest; 0 or -1
    keeps all."""
    dry_multiplier: float = 0.0
    """What a token loses that would make a repetition longer (DRY): so much times `dry_base` to
    the power of the repetition's length beyond `dry_allowed_length`. 0 is off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    """Tokens that are looked at; -1 is all of them, 0 none."""
    dry_sequence_breakers: list[str] = msgspec.field(default_factory=lambda: list(DRY_BREAKERS))
    """Texts across which nothing counts as a repetition."""
    typical_p: float = 1.0
    """Keeps the tokens whose information is nearest to the entropy, up to this share; 1 all."""
    xtc_probability: float = 0.0
    """How often all but the last of the tokens that are at least `xtc_threshold` probable are left
    out (XTC)."""
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    """Lets the temperature vary by so much in both directions, with the entropy to the power of
    `dynatemp_exponent`."""
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    """1 or 2: a feedback keeps the surprise of tokens near `mirostat_tau` bits, in place of the
    samplers that leave tokens out (arXiv:2007.14966)."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    """How fast the feedback is."""
    min_keep: int = 0
    """The least that top-p, min-p, typical and XTC leave of the tokens before them."""
    samplers: list[str] | None = None
    """Samplers in the order in which they are applied; one that is not named is off. None: the
    engine's order, or llama.cpp's where one of its own is on."""
    seed: int | None = None
    stop: list[str] = msgspec.field(default_factory=list)
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    bad_words: list[str] = msgspec.field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None generates until the context is full."""
    min_tokens: int = 0
    logprobs: int | None = None
    """Alternatives reported per generated token, from raw logits; -1 is the vocabulary."""
    logprobs_after_sampling: bool = False
    """They are those that the token was drawn with, as llama-server's `post_sampling_probs`."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    """Keeps only the last so many prompt tokens; -1 is the context's length."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the output must look like."""
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self._check_numbers()
        self._check_lists()
        if self.samplers is not None:
            self.samplers = named_samplers(self.samplers)
            for sampler in SAMPLERS.keys() - set(self.samplers):
                for name, value in neutral(sampler).items():
                    setattr(self, name, value)

    def _check_numbers(self) -> None:
        _require(_is_int(self.n) and self.n >= 1, "n", self.n, "an integer of at least 1")
        for number in NUMBERS:
            value = getattr(self, number.name)
            _require(number.holds(value), number.name, value, number.range)
        if self.max_tokens is not None:
            _require(
                _is_int(self.max_tokens) and self.max_tokens >= 0,
                "max_tokens", self.max_tokens, "an integer of at least 0",
            )  # fmt: skip
        _require(
            _is_int(self.min_tokens) and self.min_tokens >= 0,
            "min_tokens", self.min_tokens, "an integer of at least 0",
        )  # fmt: skip
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, "at most max_tokens",
        )  # fmt: skip
        if self.seed is not None:
            _require(
                _is_int(self.seed) and -MAX_INT - 1 <= self.seed <= MAX_INT,
                "seed", self.seed, "a 64-bit integer",
            )  # fmt: skip
        for name in ("logprobs", "prompt_logprobs", "truncate_prompt_tokens"):
            value = getattr(self, name)
            _require(
                value is None or (_is_int(value) and -1 <= value <= MAX_INT),
                name, value, "-1 or more, in 64 bits",
            )  # fmt: skip

    def _check_lists(self) -> None:
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                _require(isinstance(text, str) and text != "", name, text, "non-empty strings")
        for token in self.stop_token_ids:
            _require(_is_int(token) and token >= 0, "stop_token_ids", token, "token ids")
        for token, bias in (self.logit_bias or {}).items():
            _require(_is_int(token) and token >= 0, "logit_bias", token, "keyed by token ids")
            _require(_is_real(bias), "logit_bias", bias, "finite numbers")
        if self.allowed_token_ids is not None:
            _require(len(self.allowed_token_ids) > 0, "allowed_token_ids", [], "non-empty")
            for token in self.allowed_token_ids:
                _require(_is_int(token) and token >= 0, "allowed_token_ids", token, "token ids")

        for text in self.dry_sequence_breakers:
            _require(isinstance(text, str), "dry_sequence_breakers", text, "texts")

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5 and not self.dynatemp_range

    @property
    def chain(self) -> list[str] | None:
        """Samplers of this request that do something, in its own order: None where the engine's
        order does the same. With mirostat nothing else leaves tokens out."""
        order = list(SAMPLERS) if self.samplers is None else self.samplers
        active = [sampler for sampler in order if self._does_something(sampler)]
        if self.mirostat:
            return [name for name in active if name in _BESIDE_MIROSTAT]
        if self.dynatemp_range or self.min_keep > 1 or not set(active) <= set(ENGINE_ORDER):
            return active
        usual = [sampler for sampler in ENGINE_ORDER if sampler in active]
        return None if self.samplers is None or active == usual else active

    def _does_something(self, sampler: str) -> bool:
        if sampler == "dry":
            return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0
        if sampler == "xtc":
            return self.xtc_probability > 0 and self.xtc_threshold <= 0.5
        if sampler in ("top_k", "top_n_sigma"):
            return bool(getattr(self, sampler) > 0)
        return neutral(sampler) != {name: getattr(self, name) for name in neutral(sampler)}


def named_samplers(given: str | list[str]) -> list[str]:
    """As `sampler_order`; RequestError for a name that is none."""
    texts = isinstance(given, str) or all(isinstance(text, str) for text in given)
    _require(texts, "samplers", given, "names")
    try:
        return sampler_order(given)
    except ValueError as error:
        raise RequestError(f"samplers: {error}.", param="samplers") from error


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    # Compared, not converted: an integer may be larger than any float.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]  # a number


def _require(condition: bool, param: str, value: object, expected: str) -> None:
    if not condition:
        raise RequestError(f"{param} must be {expected}, got {value!r}.", param=param)
