"""Notices when the model goes in circles: the same action without effect, or a short cycle that
always ends where it began."""

from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum

from pagoda_agent.input.actions import Action, Point, Type, points
from pagoda_agent.screen.effect import Effect, alike
from pagoda_agent.screen.frame import Frame

NUDGE_AT = 3
STOP_AT = 6
_LONGEST_CYCLE = 4
# Clicks this near count as the same: 0.5% is 6 pixels of 1280.
_NEAR = 0.005


class Verdict(Enum):
    GOES_ON = "goes on"
    NUDGE = "nudge"
    STOP = "stop"


class StuckDetector:
    """Told of every step; one for each task."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Hashable, bool, Frame]] = deque(maxlen=STOP_AT * _LONGEST_CYCLE)

    def add(self, actions: Sequence[Action], effect: Effect, after: Frame) -> Verdict:
        """The verdict once a step was carried out and `after` was seen."""
        self._steps.append((tuple(map(_signature, actions)), effect.happened, after))
        repeats = max(self._idle_repeats(), *map(self._cycles, range(2, _LONGEST_CYCLE + 1)))
        if repeats >= STOP_AT:
            return Verdict.STOP
        return Verdict.NUDGE if repeats >= NUDGE_AT else Verdict.GOES_ON

    def reset(self) -> None:
        """The user gave a hint: what was tried before counts no more."""
        self._steps.clear()

    def _idle_repeats(self) -> int:
        """How often the last step was done in a row without an effect."""
        count = 0
        last = self._steps[-1][0]
        for signature, happened, _ in reversed(self._steps):
            if signature != last or happened:
                break
            count += 1
        return count

    def _cycles(self, length: int) -> int:
        """How often the last `length` steps were repeated, the screen coming back each time."""
        steps = list(self._steps)
        count = 1
        while len(steps) >= (count + 1) * length:
            now = steps[len(steps) - length :]
            then = steps[len(steps) - (count + 1) * length : len(steps) - count * length]
            if [step[0] for step in now] != [step[0] for step in then]:
                break
            if not alike(now[-1][2], then[-1][2]):
                break
            count += 1
        varied = len({step[0] for step in steps[-length:]}) > 1
        return count if varied else 0


def _signature(action: Action) -> Hashable:
    """The same for actions that a user would call the same."""
    if isinstance(action, Type):
        return action
    return (type(action), *map(_rounded, points(action)), *_details(action))


def _rounded(point: Point) -> tuple[int, int]:
    return round(point.x / _NEAR), round(point.y / _NEAR)


def _details(action: Action) -> list[Hashable]:
    return [
        value
        for value in vars(action).values()
        if not isinstance(value, Point)
        and not (isinstance(value, tuple) and value and isinstance(value[0], Point))
    ]
