"""A config as the command line that makes it."""

import dataclasses
import json
import shlex
from collections.abc import Collection, Sequence
from typing import Any

from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.config.option import flag_name
from pagoda.config.server import ServerConfig
from pagoda.planner.resolved import ResolvedConfig

_KEY = "PAGODA_API_KEY"

INDENT = "    "
"""Indents a command on a line of its own, which is never wrapped: it is there to be copied."""


def fields_of(config: EngineConfig | ResolvedConfig) -> dict[str, Any]:
    """All fields of all of its sections by name."""
    return {
        field.name: getattr(section, field.name)
        for section in _sections(config)
        for field in dataclasses.fields(section)
    }


def differences(config: EngineConfig) -> dict[str, Any]:
    """The fields that are not as they are by default; never the model."""
    defaults = fields_of(EngineConfig())
    return {
        name: value
        for name, value in fields_of(config).items()
        if value != defaults[name] and name != "model"
    }


def serve_command(model: str, config: EngineConfig, serving: str = "") -> str:
    """`pagoda serve MODEL ...`, ready to be pasted; `serving` is what `serving_words` makes. It
    comes first: a flag that takes several values would take further models for some of them."""
    flags = [
        word for name, value in differences(config).items() for word in flag_words(name, value)
    ]
    return " ".join(filter(None, (quoted(["pagoda", "serve", model]), serving, quoted(flags))))


def serving_words(
    config: ServerConfig, more_models: Sequence[str] = (), only: Collection[str] | None = None
) -> str:
    """Further models and the flags of the HTTP server, `only` these if given, as a shell takes
    them. Keys are not repeated: who pastes the command has to have one in the environment."""
    words = list(more_models)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        wanted = only is None or field.name in only
        if wanted and value != field.default and field.name != "api_key":
            words += flag_words(field.name, value)
    keys = [f'--api-key "${{{_KEY}:?}}"'] if config.api_key else []
    return " ".join([*([quoted(words)] if words else []), *keys])


def quoted(words: Sequence[str]) -> str:
    """For a shell, in characters that a terminal only shows."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{_escapes(word)}'" for word in words
    )


def _escapes(word: str) -> str:
    return "".join(c if c.isprintable() and c not in "\\'" else _escape(c) for c in word)


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))


def key_note(command: str) -> list[str]:
    """What to do about a key that `serving_words` left out."""
    note = say("The key is not repeated: put it into {variable} first.", variable=_KEY)
    return [note] if _KEY in command else []


def flag_words(name: str, value: Any) -> list[str]:
    """One flag as the command line takes it."""
    flag = flag_name(name)
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def _sections(config: EngineConfig | ResolvedConfig) -> list[Any]:
    return [getattr(config, field.name) for field in dataclasses.fields(config)]
