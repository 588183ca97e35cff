"""Flags of others that say in other words what one of ours says."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.config.parser import More
from pagoda.config.sampling import NUMBERS, Number, sampler_order
from pagoda.config.speculation import checked


@dataclass(frozen=True)
class Same:
    flags: str
    field: str
    """The field of ours."""
    read: Callable[[str], Any]
    """From the flag's text to what the field takes; a piece of it where that is a mapping."""
    value: str | None = None
    """The text that a flag without a value stands for."""


def _sampling(number: Number) -> Callable[[str], dict[str, Any]]:
    return lambda text: {number.name: number.kind(text)}


def _ordered(given: str | list[str]) -> dict[str, list[str]]:
    try:
        return {"samplers": sampler_order(given)}
    except ValueError as error:
        raise ConfigError(f"{error}.") from error


def _breaker(text: str) -> dict[str, list[str]]:
    """`none` alone leaves none; each further flag adds its text."""
    return {"dry_sequence_breakers": More([] if text == "none" else [text])}


def _overridden(text: str) -> str | None:
    """The entries that make a ranker of Qwen3-Reranker; no others are taken."""
    given = json.loads(text)
    known = {"architectures", "classifier_from_token", "is_original_qwen3_reranker"}
    tokens = given.get("classifier_from_token") if isinstance(given, dict) else None
    if given == {}:
        return None
    if not isinstance(tokens, list) or not given.keys() <= known:
        raise ConfigError(
            "it takes classifier_from_token, for a ranker, and no other entries; edit config.json "
            "in a copy of the folder."
        )
    return ",".join(map(str, tokens))


def _length(text: str) -> dict[str, int]:
    """Below 0, "as long as it likes" and "until the context is full", is no limit."""
    tokens = int(text)
    return {"max_tokens": tokens} if tokens >= 0 else {}


def _method(text: str) -> dict[str, object]:
    """The last of several, as llama-server chains them, is the one that guesses most."""
    return checked({"method": text.rpartition(",")[2].strip()})


def _drafts(key: str) -> Callable[[str], dict[str, object]]:
    return lambda text: checked({key: int(text)})


def _draft_model(text: str) -> dict[str, object]:
    """vLLM once wrote methods so: [ngram]."""
    if text.startswith("[") and text.endswith("]"):
        return checked({"method": text[1:-1]})
    return checked({"model": text})


def _hub_draft_model(text: str) -> dict[str, object]:
    return checked({"model": f"hf:{text}"})


def _mode(text: str) -> dict[str, object]:
    return checked({"mode": text})


def _launcher_mode(text: str) -> dict[str, object]:
    """What a launcher for old GPUs tells vLLM; other platforms' settings mean nothing here."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("write a JSON object")
    return checked({"mode": value["caovan_mode"]}) if "caovan_mode" in value else {}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _level(text: str) -> str:
    """llama-server counts up from what must be said."""
    levels = ("info", "error", "warning", "info")
    number = int(text)
    return levels[number] if 0 <= number < len(levels) else "debug"


def _silence(text: str) -> float:
    return max(0.0, float(text))


def _switched(text: str) -> dict[str, bool]:
    states: dict[str, dict[str, bool]] = {
        "on": {"enable_thinking": True}, "off": {"enable_thinking": False}, "auto": {},
    }  # fmt: skip
    if text not in states:
        raise ConfigError(f"it is {text!r}; it takes one of: {', '.join(states)}.")
    return states[text]


def _effort(text: str) -> dict[str, str]:
    return {} if text == "default" else {"reasoning_effort": text}


def _file(text: str) -> str:
    try:
        return Path(text).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {text} cannot be read: {error}.") from error


_SAMPLING = "override_generation_config"
_TEMPLATE = "default_chat_template_kwargs"
_SPECULATION = "speculative_config"

SAME = (
    Same("-q", "quantization", str),
    Same("-cmoe --cpu-moe", "n_cpu_moe", str, "all"),
    *(Same(" ".join(number.flags), _SAMPLING, _sampling(number)) for number in NUMBERS),
    Same("--samplers", _SAMPLING, lambda text: _ordered(text.split(";"))),
    Same("--sampler-seq --sampling-seq", _SAMPLING, _ordered),
    Same("--dry-sequence-breaker", _SAMPLING, _breaker),
    Same("--hf-overrides", "score_tokens", _overridden),
    Same("--predict --n-predict", _SAMPLING, _length),
    Same("--grammar-file", "grammar", _file),
    Same("--json-schema-file -jf", "json_schema", _file),
    Same("-rea --reasoning", _TEMPLATE, _switched),
    Same("--reasoning-effort", _TEMPLATE, _effort),
    Same("-v --verbose --log-verbose", "log_level", str, "debug"),
    Same("-lv --verbosity --log-verbosity", "log_level", _level),
    Same("--log-jsonl", "log_format", str, "json"),
    Same("--cors-origins", "allowed_origins", _listed),
    Same("--cors-methods", "allowed_methods", _listed),
    Same("--cors-headers", "allowed_headers", _listed),
    Same("--spec-method --spec-type", _SPECULATION, _method),
    Same(
        "--model-draft -md --spec-draft-model --speculative-model --spec-model",
        _SPECULATION,
        _draft_model,
    ),
    Same("--hf-repo-draft -hfd -hfrd --spec-draft-hf", _SPECULATION, _hub_draft_model),
    Same(
        "--spec-tokens --num-speculative-tokens --draft-max --draft --draft-n --spec-draft-n-max",
        _SPECULATION,
        _drafts("num_speculative_tokens"),
    ),
    Same(
        "--draft-min --draft-n-min --spec-draft-n-min",
        _SPECULATION,
        _drafts("min_speculative_tokens"),
    ),
    Same("--ngram-prompt-lookup-max", _SPECULATION, _drafts("prompt_lookup_max")),
    Same("--ngram-prompt-lookup-min", _SPECULATION, _drafts("prompt_lookup_min")),
    Same("--mode", _SPECULATION, _mode),
    Same("--additional-config", _SPECULATION, _launcher_mode),
    Same("--spec-default", _SPECULATION, _method, "ngram-mod"),
    Same("--sse-ping-interval", "sse_keep_alive_interval", _silence),
)
