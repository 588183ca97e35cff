"""Finds where the end of a text stood before."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

# Places that are looked at, the latest first, and tokens that are compared at each.
_PLACES = 8
LONGEST = 32
_SHIFT = 32


class Match(NamedTuple):
    end: int
    """Behind the place's last token: what followed begins here."""
    length: int
    """Tokens in front of it that are the same, 2 to 32."""


class TextIndex:
    """Pairs of neighbours in a text that only grows, each with the places where it stands.

    Takes about 130 bytes a token besides the text, and half a microsecond.
    """

    def __init__(self, text: list[int]):
        """`text` is shared with whoever lets it grow."""
        self.text = text
        self._latest: dict[int, int] = {}
        """By pair: the end of its latest place."""
        self._earlier = array("i", (-1, -1))
        """By the end of a place: the end of the one before of the same pair, or -1."""

    @property
    def end(self) -> int:
        """Tokens that are taken in."""
        return len(self._earlier) - 1

    def append(self, tokens: Sequence[int]) -> None:
        """Let the text grow, and take that in."""
        self.text += tokens
        self.extend(len(self.text))

    def extend(self, end: int) -> None:
        """Take in the pairs that end in front of `end` or there."""
        text, latest, earlier = self.text, self._latest, self._earlier
        for place in range(len(earlier), end + 1):
            pair = text[place - 2] << _SHIFT | text[place - 1]
            earlier.append(latest.get(pair, -1))
            latest[pair] = place

    def longest(self, context: Sequence[int]) -> Match | None:
        """Where the longest end of `context` stands, of 2 tokens at least; of several the latest.
        Only some of the latest places are looked at."""
        if len(context) < 2:
            return None
        text, most = self.text, min(LONGEST, len(context))
        place = self._latest.get(context[-2] << _SHIFT | context[-1], -1)
        found, length = -1, 1
        for _ in range(_PLACES):
            if place < 0:
                break
            same, limit = 2, min(most, place)
            while same < limit and text[place - same - 1] == context[-same - 1]:
                same += 1
            if same > length:
                found, length = place, same
            place = self._earlier[place]
        return Match(found, length) if found >= 0 else None
