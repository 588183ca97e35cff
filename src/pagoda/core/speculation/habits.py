"""What a text writes in place of some of its source's tokens, over and over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

# Places that are remembered, the latest learned.
_MOST = 1024
# A change that held so often in a row is as sure as can be.
_SURE = 3
# How often a change holds again that held once, twice or more often in a row, until that is known:
# where only the changed token is the same, and where the one in front of it is, too.
HABIT_CHANCES = (0.6, 0.8, 0.92, 0.75, 0.9, 0.97)

_Key = TypeVar("_Key")


class Change(NamedTuple):
    replaced: int
    """Tokens of the source that are left out."""
    written: tuple[int, ...]
    """What stands in their place."""


@dataclass
class _Habit:
    change: Change
    times: int
    """How often it held in a row, `_SURE` at most; 0: it is not expected."""


class Habits:
    """The changes of one text, by the tokens of the source where they begin.

    A name that was replaced once is expected to be replaced wherever it stands, but not again
    behind a token where it was left alone.
    """

    def __init__(self) -> None:
        self._by_token: dict[int, _Habit] = {}
        self._by_pair: dict[tuple[int, int], _Habit] = {}

    def at(self, source: Sequence[int], place: int) -> tuple[Change, int] | None:
        """What is expected at a place of the source, and its evidence: an index into
        `HABIT_CHANCES`."""
        if not self._by_token or not 0 < place < len(source):
            return None
        first = _SURE
        known = self._by_pair.get((source[place - 1], source[place]))
        if known is None:
            first = 0
            known = self._by_token.get(source[place])
        if known is None or not known.times:
            return None
        return known.change, first + known.times - 1

    def held(self, source: Sequence[int], place: int, change: Change) -> None:
        """The change was made at a place of the source, for the first time or again."""
        if 0 < place < len(source):
            token = source[place]
            _count(self._by_token, token, change)
            _count(self._by_pair, (source[place - 1], token), change)

    def failed(self, source: Sequence[int], place: int) -> None:
        """The text kept to the source where a change was expected."""
        token = source[place]
        pair = source[place - 1], token
        known = self._by_pair.get(pair)
        if known is None:
            known = self._by_token[token]
            known.times -= 1
            _keep(self._by_pair, pair, _Habit(known.change, 0))
        else:
            known.times = 0


def _count(habits: dict[_Key, _Habit], key: _Key, change: Change) -> None:
    known = habits.get(key)
    if known is not None and known.change == change:
        known.times = min(_SURE, known.times + 1)
    else:
        _keep(habits, key, _Habit(change, 1))


def _keep(habits: dict[_Key, _Habit], key: _Key, habit: _Habit) -> None:
    habits.pop(key, None)
    habits[key] = habit
    if len(habits) > _MOST:
        del habits[next(iter(habits))]
