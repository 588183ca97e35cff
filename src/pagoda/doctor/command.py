"""A config as the command line that makes it."""

import dataclasses
import json
import shlex
from typing import Any

from pagoda.config.engine import EngineConfig
from pagoda.config.option import flag_name


def fields_of(config: EngineConfig) -> dict[str, Any]:
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


def serve_command(model: str, config: EngineConfig) -> str:
    """`pagoda serve MODEL ...`, ready to be pasted."""
    words = ["pagoda", "serve", model]
    for name, value in differences(config).items():
        words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    flag = flag_name(name)
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def _sections(config: EngineConfig) -> list[Any]:
    return [getattr(config, field.name) for field in dataclasses.fields(config)]
