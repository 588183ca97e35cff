"""`--for "20 users x 8k"`: how many requests of how many tokens."""

import re
from dataclasses import dataclass

from pagoda.base.errors import ConfigError
from pagoda.base.units import parse_size

_FORM = re.compile(
    r"\s*(\d+)\s*(?:users?|requests?|streams?)?\s*(?:[x×*@]|of|at|with)\s*([\d.]+\s*[kKmM]?)\s*"
    r"(?:tokens?)?\s*"
)


@dataclass(frozen=True)
class Users:
    count: int
    tokens: int
    """Of each one's context."""


def parse_users(text: str) -> Users:
    """ConfigError for anything but so many users times so many tokens, both at least 1."""
    match = _FORM.fullmatch(text)
    if match is None or not int(match[1]):
        raise ConfigError(f"--for {text!r} is not understood; write such as '20 users x 8k'.")
    tokens = parse_size(match[2].replace(" ", ""))
    if not tokens:
        raise ConfigError(f"--for {text!r}: each user needs at least one token.")
    return Users(int(match[1]), tokens)
