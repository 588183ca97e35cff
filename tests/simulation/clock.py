"""The clocks and the diary of a simulated machine."""

import hashlib
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.virtual_time import VirtualLoop

# Neither clock begins at zero: what confuses the two shows.
_MONOTONIC, _WALL = 1_000.0, 1_700_000_000.0


class Clock:
    """All clocks of the machine. A process that computes is ahead of the loop by `busy` seconds:
    to the others what it does is done when they have passed."""

    def __init__(self, loop: VirtualLoop):
        self.loop = loop
        self.busy = 0.0
        self.wall_offset = 0.0

    def now(self) -> float:
        """Since the simulation began."""
        return self.loop.time() + self.busy

    def monotonic(self) -> float:
        return _MONOTONIC + self.now()

    def wall(self) -> float:
        return _WALL + self.wall_offset + self.now()


class Trace:
    """What happened, line by line: all of it as a hash, the last of it as text."""

    def __init__(self, clock: Clock, keep: int | None = 60):
        self._clock = clock
        self._hash = hashlib.sha256()
        self.tail: deque[str] = deque(maxlen=keep)
        self.count = 0

    def add(self, who: str, what: str) -> None:
        line = f"{self._clock.now():12.6f}  {who:<10} {what}"
        self._hash.update(line.encode())
        self.tail.append(line)
        self.count += 1

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


@contextmanager
def simulated_time(clock: Clock) -> Iterator[None]:
    """All that asks for the time, or for an id, is told what the seed says."""
    count = iter(range(1 << 62))
    with (
        mock.patch.object(time, "monotonic", clock.monotonic),
        mock.patch.object(time, "perf_counter", clock.monotonic),
        mock.patch.object(time, "time", clock.wall),
        mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=next(count))),
    ):
        yield
