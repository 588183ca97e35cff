"""What config.json says of well-known models, for where no hub can be asked.

catalogue.json is written by tools/catalogue.py: a config by name, or the name of one that is equal.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


def config_of(name: str) -> dict[str, Any] | None:
    """The config of `org/name`, in any case; None for a model that is not in the catalogue."""
    found = _configs().get(name.lower())
    if isinstance(found, str):
        found = _configs()[found.lower()]
    return found


def names() -> list[str]:
    return list(_read())


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_text())
    return found


@cache
def _configs() -> dict[str, Any]:
    return {name.lower(): config for name, config in _read().items()}
