"""A place that a request's text seems to be copied from, token by token."""

from collections.abc import Sequence

from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.text_index import TextIndex

# Lengths of matches of like evidence: from so many tokens on.
_LENGTHS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
# How often the token behind a match of such length comes true, until that is known.
FIRST_CHANCES = (0.5, 0.3, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.97)
# The same behind a token that was another one in the source.
CHANGED_CHANCES = (0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.97)
# A text that kept to its source for so many tokens is taken to go on beside it behind a change, and
# behind the next one if it kept to it for a few in between.
_ALIGNED, _ALIGNED_AGAIN = 8, 3
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

    def past_change(self, tokens: Sequence[int], offset: int) -> "Copied | None":
        """Behind a token that is another one in the source: where that goes on, if one stands for
        one. `tokens` are the text's next ones; `offset` is added to the evidence."""
        if self.length < (_ALIGNED_AGAIN if self._offset == offset else _ALIGNED):
            return None
        place = self._place
        for index, token in enumerate(tokens):
            if place >= len(self.source) or self.source[place] == END:
                return None
            if self.source[place] != token:
                behind = Copied(self.source, place + 1, 0, offset)
                return behind if behind.follow(tokens[index + 1 :]) else None
            place += 1
        return None

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
