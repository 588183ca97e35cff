"""`--for "20 users x 8k"`: how many requests of how many tokens."""

import re
from dataclasses import dataclass

from pagoda.base.errors import ConfigError
from pagoda.base.units import parse_size
from pagoda.base.words import say

_FORM = re.compile(
    r"\s*(\d{1,18})\s*(?:users?|requests?|streams?)?\s*(?:[x×*@]|of|at|with)\s*([\d.]+\s*[kKmM]?)\s*"
    r"(?:tokens?)?\s*"
)
_MOST_USERS = 1_000_000
_MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True)
class Users:
    count: int
    tokens: int
    """Length of each one's context."""


def parse_users(text: str) -> Users:
    """ConfigError for anything but so many users times so many tokens, both at least 1."""
    match = _FORM.fullmatch(text)
    if match is None or not int(match[1]):
        raise ConfigError(
            say("--for {text!r} is not understood; write such as '20 users x 8k'.", text=text)
        )
    tokens = parse_size(match[2].replace(" ", ""))
    if not tokens:
        raise ConfigError(say("--for {text!r}: each user needs at least one token.", text=text))
    if int(match[1]) > _MOST_USERS or tokens > _MOST_TOKENS:
        raise ConfigError(
            f"--for {text!r} is beyond any machine; ask for at most {_MOST_USERS:,} users and "
            f"{_MOST_TOKENS:,} tokens each."
        )
    return Users(int(match[1]), tokens)
