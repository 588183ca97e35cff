"""Time that passes at once: what takes minutes takes milliseconds, a busy machine changes nothing,
and the same callbacks run in the same order each time."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class _Leaping(selectors.SelectSelector):
    """Leaps over every wait. What waits for something that never comes is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "Something waits, and nothing is left that could happen."
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while there is something to do, and jumps to the next timer else."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now

    def leap(self, seconds: float) -> None:
        """So much passes for everyone, and nobody could do anything meanwhile."""
        self._leaping.now += seconds

    def run_in_executor(
        self, executor: Any, work: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """At once: the clock would not wait for a thread."""
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # noqa: BLE001  # its reader raises it
            done.set_exception(error)
        return done


def run_virtually(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The coroutine's result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run
