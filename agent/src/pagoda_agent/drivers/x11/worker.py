"""One thread for calls that block, so that asyncio's loop does not."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Does what it is asked for in that order.

    Its thread is a daemon: a display that never answers must not keep the program from ending.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], object]] | None] = SimpleQueue()
        Thread(target=self._run, name="x11", daemon=True).start()

    async def call(self, job: Callable[[], T]) -> T:
        """Its result or exception. A job that has begun goes on when the caller is cancelled."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End after the jobs that were asked for before."""
        self._jobs.put(None)

    def _run(self) -> None:
        while entry := self._jobs.get():
            future, job = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 the caller's, whatever it is
                future.set_exception(error)
