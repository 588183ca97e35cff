"""Sizes and durations as people write and read them."""

import re

from pagoda.base.errors import ConfigError
from pagoda.base.words import say

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(i?[bB])?\s*$")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Read `4096`, `32k` (decimal, 32,000) or `256K` (binary, 262,144); `GiB` is binary too.

    Raises ConfigError for anything else. Lower case is decimal and upper case binary, as in vLLM.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ConfigError(
            say("{text!r} is not a size; write a number such as 4096, 32k or 256K.", text=text)
        )
    number, unit, suffix = match.groups()
    binary = unit.isupper() or (suffix or "").startswith("i")
    value = float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if not value.is_integer():  # infinity is none either
        raise ConfigError(say("{text!r} is not a whole number.", text=text))
    return int(value)


def short_size(count: int) -> str:
    """As `parse_size` reads it, with a binary unit where that divides it: `4G`."""
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if count and count % (1 << power) == 0:
            return f"{count >> power}{unit}"
    return str(count)


def format_bytes(count: float) -> str:
    """`1.50 GiB`; binary units, three significant digits or so."""
    sign, value = ("-", -count) if count < 0 else ("", count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{sign}{value:.0f} B" if unit == "B" else f"{sign}{value:.2f} {unit}"
        value /= 1024
    return f"{sign}{value:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """`12 ms`, `3.4 s` or `2 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
