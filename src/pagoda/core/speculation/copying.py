"""A place that a request's text seems to be copied from, token by token."""

from collections.abc import Sequence

from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.text_index import TextIndex

# Lengths of matches of like evidence: from so many tokens on.
_LENGTHS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
# How often the token behind a match of such length comes true, until that is known.
FIRST_CHANCES = (0.5, 0.3, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.97)
_BY_LENGTH = [
    max(index for index, least in enumerate(_LENGTHS) if least <= length)
    for length in range(_LENGTHS[-1] + 1)
]
END = -1
"""Stands in a source where a text ends."""


class Copied:
    """Follows a text along a source, and guesses that it goes on like that."""

    def __init__(self, source: Sequence[int], place: int, length: int, offset: int = 0):
        """The text's last `length` tokens are those of `source` in front of `place`; `offset` is
        added to the evidence."""
        self.source = source
        self.length = length
        self._place = place
        self._offset = offset

    def follow(self, tokens: Sequence[int]) -> bool:
        """Whether the text's next tokens are the source's. It can only be followed as long as that
        is so."""
        source, place = self.source, self._place
        for token in tokens:
            if place >= len(source) or source[place] != token:
                return False
            place += 1
        self._place = place
        self.length += len(tokens)
        return True

    def guess(self, most: int) -> Guess:
        """What comes next in the source. One that ends there repeats itself: it is the text."""
        source, place = self.source, self._place
        tokens = list(source[place : place + most])
        if END in tokens:
            del tokens[tokens.index(END) :]
        elif tokens and len(tokens) < most:
            period = tokens
            while len(tokens) < most:
                tokens = tokens + period
            del tokens[most:]
        last = len(_BY_LENGTH) - 1
        first = self.length
        offset = self._offset
        return Guess(
            tokens, [offset + _BY_LENGTH[min(first + i, last)] for i in range(len(tokens))]
        )


def latest_copy(index: TextIndex, text: Sequence[int], offset: int = 0) -> Copied | None:
    """Where the end of `text` stands in an index."""
    match = index.longest(text)
    return None if match is None else Copied(index.text, match.end, match.length, offset)
