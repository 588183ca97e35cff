"""Adapters (LoRA) that are served beside their model."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagoda.base.errors import ConfigError
from pagoda.config.option import Options, option


class NamedAdapter(NamedTuple):
    name: str
    path: str


class ScaledAdapter(NamedTuple):
    path: str
    scale: float


def _number(text: str) -> int | str:
    return text if text == "auto" else int(text)


@dataclass(frozen=True)
class AdapterConfig(Options):
    """Adapters (LoRA) beside the model, each chosen by its name."""

    enable_lora: bool = option(
        False,
        "Keep room for adapters that are loaded while the server runs; --lora-modules and --lora "
        "imply it.",
    )
    lora_modules: tuple[str, ...] = option(
        (),
        "Adapters under names that requests give as `model`: NAME=FOLDER, where peft saved one, or "
        'JSON such as {"name": "sql", "path": "/adapters/sql"}.',
    )
    max_loras: int | str = option(
        "auto",
        "Most adapters that are loaded at once, sums of several (--lora) counted: all of them stay "
        "in memory. By default 4 more than the flags name, or 4.",
        parse=_number,
        bounds=(1, 1024),
    )
    max_lora_rank: int | str = option(
        "auto",
        "Largest rank of an adapter, or of several that a request applies together. By default "
        "what the adapters that flags name need, at least 16.",
        parse=_number,
        bounds=(1, 4096),
    )
    lora_dtype: str = option(
        "auto",
        "Type of the adapters' numbers in memory: `auto` is that of activations, float32 on a CPU. "
        "bfloat16 halves their memory, and what a step reads of them.",
        choices=("auto", "float16", "bfloat16", "float32"),
    )
    lora_experts: bool = option(
        False,
        "Keep room beside the experts of mixtures, too, for adapters that are loaded while the "
        "server runs; those that flags name imply it where they have some.",
    )
    lora: tuple[str, ...] = option(
        (),
        "Adapters that apply to every request to the model: llama.cpp's GGUF files, or folders of "
        "peft; several may be given, or joined by commas. A request's field `lora` changes that.",
    )
    lora_scaled: tuple[str, ...] = option(
        (), "As --lora, each as FILE:SCALE; a scale multiplies what the adapter does."
    )
    lora_init_without_apply: bool = option(
        False, "Load those of --lora with the scale 0, until POST /lora-adapters gives another."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [adapter.name for adapter in self.named]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"--lora-modules names {twice!r} twice; give each adapter its own.")
        _ = self.applied  # a scale that is no number is said now

    @property
    def enabled(self) -> bool:
        return bool(self.enable_lora or self.lora_modules or self.lora or self.lora_scaled)

    @property
    def unnamed(self) -> "AdapterConfig":
        """The same room, without the adapters themselves."""
        return replace(
            self, enable_lora=self.enabled, lora_modules=(), lora=(), lora_scaled=(),
        )  # fmt: skip

    @property
    def named(self) -> list[NamedAdapter]:
        """Those of --lora-modules."""
        return [_named(word) for word in self.lora_modules]

    @property
    def applied(self) -> list[ScaledAdapter]:
        """Those of --lora and --lora-scaled, in the order of their ids."""
        plain = [ScaledAdapter(path, 1.0) for path in _split(self.lora)]
        return plain + [_scaled(word) for word in _scaled_words(self.lora_scaled)]

    @property
    def paths(self) -> list[str]:
        """All that flags name, each once."""
        every = [adapter.path for adapter in self.named] + [each.path for each in self.applied]
        return list(dict.fromkeys(every))


def _named(word: str) -> NamedAdapter:
    if word.startswith("{"):
        try:
            told = json.loads(word)
        except ValueError as error:
            raise ConfigError(f"--lora-modules {word!r} is not JSON: {error}.") from error
        name, path = told.get("name"), told.get("path")
    else:
        name, _, path = word.partition("=")
    if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
        raise ConfigError(
            f'--lora-modules {word!r} is neither NAME=FOLDER nor {{"name": NAME, "path": FOLDER}}.'
        )
    return NamedAdapter(name, path)


def _split(words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        yield from filter(None, word.split(","))


def _scaled_words(words: tuple[str, ...]) -> Iterator[str]:
    """FILE:SCALE each; llama.cpp had `FILE SCALE` before."""
    parts = list(_split(words))
    if len(parts) == 2 and ":" not in parts[0] and _is_number(parts[1]):
        parts = [":".join(parts)]
    yield from parts


def _scaled(word: str) -> ScaledAdapter:
    path, _, scale = word.rpartition(":")
    if not path or not _is_number(scale):
        raise ConfigError(f"--lora-scaled {word!r} is not FILE:SCALE, such as style.gguf:0.5.")
    return ScaledAdapter(path, float(scale))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
