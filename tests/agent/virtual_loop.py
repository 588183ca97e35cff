"""An event loop whose clock leaps over every wait: the same callbacks in the same order each time,
and nothing is slow. What waits for something that never comes is an error."""

import asyncio
import selectors


class _Leaping(selectors.SelectSelector):
    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise AssertionError("Something waits, and nothing is left that could happen.")
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self):
        return self._leaping.now


def run_virtually(main):
    """The coroutine's result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
