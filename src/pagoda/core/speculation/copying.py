"""A place that a request's text seems to be copied from, token by token, perhaps with changes."""

from collections.abc import Sequence
from typing import NamedTuple

from pagoda.core.speculation.detour import Detour, is_habit
from pagoda.core.speculation.habits import HABIT_CHANCES, Change, Habits
from pagoda.core.speculation.proposer import NO_GUESS, Guess
from pagoda.core.speculation.text_index import TextIndex

# Lengths of matches of like evidence: from so many tokens on.
_LENGTHS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
_BY_LENGTH = [
    max(index for index, least in enumerate(_LENGTHS) if least <= length)
    for length in range(_LENGTHS[-1] + 1)
]
# How often the token behind a match of such length comes true, until that is known.
FIRST_CHANCES = (0.5, 0.3, 0.3, 0.45, 0.6, 0.75, 0.85, 0.92, 0.97)
# The same behind a change of the source.
_CHANGED_CHANCES = (0.6, 0.7, 0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.97)
# A token of a change that has begun as expected.
_WITHIN_CHANCE = 0.95
COPY_CHANCES = [*FIRST_CHANCES, *FIRST_CHANCES, *_CHANGED_CHANCES, *HABIT_CHANCES, _WITHIN_CHANCE]
"""By evidence: a match in the own text, in another one, behind a change; an expected change."""
OTHERS = len(FIRST_CHANCES)
_CHANGED = OTHERS + len(FIRST_CHANCES)
_HABIT = _CHANGED + len(_CHANGED_CHANCES)
_WITHIN = _HABIT + len(HABIT_CHANCES)
# A text that kept to its source for so many tokens is expected to come back to it, and behind its
# first change as soon as it kept to it for a few.
_ALIGNED, _ALIGNED_AGAIN = 8, 3
END = -1
"""Stands in a source where a text ends."""


class _Due(NamedTuple):
    """A change that is expected next."""

    change: Change
    evidence: int
    tokens: tuple[int, ...]
    """What it writes, and the source's token behind it, which shows that it is over."""


class Copied:
    """Follows a text along a source, changes included, and guesses that it goes on like that."""

    def __init__(
        self, source: Sequence[int], place: int, length: int, habits: Habits, offset: int = 0
    ):
        """The text's last `length` tokens are those of `source` in front of `place`; `offset` is
        added to the evidence."""
        self.source = source
        self.length = length
        self._habits = habits
        self._place = place
        self._end = len(source)
        """The length of the source when this was last asked: if it is the text itself, it grows."""
        self._offset = offset
        self._due = self._due_at(place)
        self._num_done = 0
        """Tokens of what is due that the text has."""
        self._detour: Detour | None = None

    @property
    def is_changing(self) -> bool:
        """The text has left the source, and may come back."""
        return self._detour is not None

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take in the text's next tokens; False once it has left the source for good."""
        end = self._end
        for token in tokens:
            if self._detour is not None:
                self._come_back(self._detour, token)
            elif not self._goes_on(token):
                least = _ALIGNED_AGAIN if self._offset == _CHANGED else _ALIGNED
                at_end = self._place >= end or self.source[self._place] == END
                if self.length < least or at_end:
                    return False
                begun = self._due.tokens[: self._num_done] if self._due is not None else ()
                self._detour = Detour(self.source, self._place, [*begun, token], end)
            if self._detour is not None and self._detour.is_lost:
                return False
        return True

    def guess(self, most: int) -> Guess:
        """What comes next. A source that ends there repeats itself: it is the text."""
        self._end = len(self.source)
        place, length, offset = self._place, self.length, self._offset
        due, num_done = self._due, self._num_done
        if self._detour is not None:
            back = self._detour.find_return()
            if back is None:
                return NO_GUESS
            place, length, offset = back.place, back.same, _CHANGED
            due, num_done = None, 0
        tokens: list[int] = []
        evidence: list[int] = []
        source, last = self.source, len(_BY_LENGTH) - 1
        while len(tokens) < most and place < len(source) and source[place] != END:
            if due is None:
                tokens.append(source[place])
                evidence.append(offset + _BY_LENGTH[min(length, last)])
                place += 1
            else:
                tokens += due.tokens[num_done:]
                evidence += [_WITHIN] * (len(due.tokens) - num_done)
                if not num_done:
                    evidence[-len(due.tokens)] = due.evidence
                place += due.change.replaced + 1
            length += 1
            due, num_done = self._due_at(place), 0
        if tokens and place >= len(source):
            times = -(-most // len(tokens))
            tokens, evidence = tokens * times, evidence * times
        return Guess(tokens[:most], evidence[:most])

    def _due_at(self, place: int) -> _Due | None:
        known = self._habits.at(self.source, place)
        if known is None:
            return None
        change, kind = known
        behind = place + change.replaced
        if behind >= len(self.source) or END in self.source[place : behind + 1]:
            return None
        return _Due(change, _HABIT + kind, (*change.written, self.source[behind]))

    def _goes_on(self, token: int) -> bool:
        """Whether the text's next token is the source's, or that of an expected change."""
        due, source, place = self._due, self.source, self._place
        if due is not None and token == due.tokens[self._num_done]:
            self._num_done += 1
            if self._num_done == len(due.tokens):
                self._habits.held(source, place, due.change)
                self._go_to(place + due.change.replaced + 1, self.length + 1)
            return True
        if self._num_done or place >= len(source) or source[place] != token:
            return False
        if due is not None:
            self._habits.failed(source, place)
        self._go_to(place + 1, self.length + 1)
        return True

    def _come_back(self, detour: Detour, token: int) -> None:
        """The text's next token on a detour, which may show its end."""
        detour.add(token)
        back = detour.find_return()
        change = None if back is None else detour.change_before(back)
        if back is None or change is None:
            return
        if is_habit(change):
            self._habits.held(self.source, self._place, change)
        self._detour, self._offset = None, _CHANGED
        self._go_to(back.place, back.same)

    def _go_to(self, place: int, length: int) -> None:
        self._place, self.length = place, length
        self._due, self._num_done = self._due_at(place), 0


def latest_copy(
    index: TextIndex, text: Sequence[int], habits: Habits, offset: int = 0
) -> Copied | None:
    """Where the end of `text` stands in an index."""
    match = index.longest(text)
    return None if match is None else Copied(index.text, match.end, match.length, habits, offset)
