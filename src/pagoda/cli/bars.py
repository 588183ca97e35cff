"""A progress bar that counts."""

import sys
from typing import Any


class CountBar:
    """`update(done, total)` moves it; nothing is shown where stderr is no terminal."""

    def __init__(self, what: str, *, show: bool = True):
        self._what = what
        self._show = show and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "CountBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        if not self._show:
            return
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=total)
        self._bar.update(self._task, completed=done)


def _new_bar() -> Any:
    """rich takes 100 ms to import, so it waits until there is something to show."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=Console(stderr=True))
