"""How late the event loop is: while it is busy with one thing, every stream waits."""

import time

# Seconds. Prometheus asks every 15 to 60, so that no scrape misses what was worst.
_PERIOD = 30.0


class LoopLag:
    """The worst of the last 30 to 60 seconds, whoever asks how often."""

    def __init__(self, interval: float):
        """`interval`: seconds from one `tick` to the next where the loop is on time."""
        self._interval = interval
        self._last: float | None = None
        self._period = 0
        self._worst = 0.0
        self._worst_before = 0.0

    def tick(self, now: float | None = None) -> None:
        """By a timer of the loop. `now` as of time.monotonic()."""
        now = time.monotonic() if now is None else now
        self._turn(now)
        if self._last is not None:
            self._worst = max(self._worst, now - self._last - self._interval)
        self._last = now

    def seconds(self, now: float | None = None) -> float:
        self._turn(time.monotonic() if now is None else now)
        return max(self._worst, self._worst_before)

    def _turn(self, now: float) -> None:
        period = int(now / _PERIOD)
        if period != self._period:
            self._worst_before = self._worst if period == self._period + 1 else 0.0
            self._worst = 0.0
            self._period = period
