"""Streams in which nothing was told for a while, as long as a prompt takes."""

import asyncio
from collections.abc import Callable


class Silence:
    """Wakes the writer of a stream that has been silent for some seconds.

    A timer of its own: a writer that waited for each token with a time limit would pay for that
    with each token.
    """

    def __init__(self, seconds: float, wake: Callable[[], None]):
        """`seconds` 0: never."""
        self._seconds = seconds
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False
        """It has lasted so long that something is to be said."""

    def __enter__(self) -> "Silence":
        if self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def told(self) -> None:
        """Something was said."""
        self._last = self._loop.time()
        self.is_over = False

    def _ring(self) -> None:
        left = self._last + self._seconds - self._loop.time()
        if left <= 0:
            self.is_over, left = True, self._seconds
            self._wake()
        self._timer = self._loop.call_later(left, self._ring)
