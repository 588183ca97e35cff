"""A progress bar that counts."""

import sys
import time
from typing import Any

from pagoda.base.words import tell

_SECONDS_BETWEEN_LINES = 10.0


class CountBar:
    """`update(done, total)` moves it. Where stderr is no terminal it is a line now and then."""

    def __init__(self, what: str, *, show: bool = True):
        self._what = what
        self._show = show
        self._bar: Any = None
        self._task: Any = None
        self._told = time.monotonic()

    def __enter__(self) -> "CountBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        if not self._show:
            return
        if not sys.stderr.isatty():
            self._tell(done, total)
            return
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)

    def _tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            said = tell("{what}: {done} of {total}", what=self._what, done=done, total=total)
            print(said, file=sys.stderr)


def _new_bar() -> Any:
    """rich takes 100 ms to import, so it waits until there is something to show."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=Console(stderr=True))
