"""A change that a text is making to its source, and where it comes back."""

from collections.abc import Sequence
from typing import NamedTuple

from pagoda.core.speculation.habits import Change

# Tokens of a change, and of the source that it may leave out, with those that show its end.
_LONGEST = 16
# So many equal tokens show that a change has ended, fewer where one token stands for each.
_SAME, _SAME_ALIGNED = 3, 2
# A longer change is no habit.
_MOST_LEARNED = 12


class Return(NamedTuple):
    place: int
    """In the source, behind the tokens that are the same again."""
    same: int
    """How many these are; 0: one token is taken to stand for one."""


class Detour:
    """Follows a text that wrote something else than its source at `place`."""

    def __init__(self, source: Sequence[int], place: int, written: list[int], end: int):
        """`written` stands where `source` has other tokens from `place` on. The source is looked at
        up to `end`: it may be the text itself, which has grown since."""
        self._source, self._place, self._written = source, place, written
        self._end = min(end, place + _LONGEST)

    @property
    def is_lost(self) -> bool:
        """It does not come back."""
        return len(self._written) > _LONGEST or self._place >= self._end

    def add(self, token: int) -> None:
        """The text's next token."""
        self._written.append(token)

    def find_return(self) -> Return | None:
        """Where the source may go on: where most of it in front is what the text wrote last."""
        found = Return(self._place + 1, 0) if len(self._written) == 1 else None
        last = self._written[-1]
        for place in range(self._place, self._end):
            if self._source[place] == last:
                same = self._same(place)
                if found is None or same > found.same:
                    found = Return(place + 1, same)
        return found if found is not None and found.place < self._end else None

    def change_before(self, back: Return) -> Change | None:
        """What was changed, if `back` shows that it is over."""
        written = len(self._written) - back.same
        replaced = back.place - back.same - self._place
        if back.same < (_SAME_ALIGNED if written == replaced else _SAME):
            return None
        return Change(replaced, tuple(self._written[:written]))

    def _same(self, place: int) -> int:
        """How many tokens up to `place` the text wrote last."""
        source, written = self._source, self._written
        most = min(len(written), place - self._place + 1)
        count = 0
        while count < most and source[place - count] == written[-count - 1]:
            count += 1
        return count


def is_habit(change: Change) -> bool:
    """Whether a change is short enough to be made again."""
    return max(change.replaced, len(change.written)) <= _MOST_LEARNED
