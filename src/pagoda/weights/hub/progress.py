"""Progress bars in the terminal for whatever fetches a model."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pagoda.weights.hub.store import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


@contextlib.contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Bars on stderr, one per thing fetched; nothing is drawn when stderr is no terminal.

    What it yields may be called from any thread.
    """
    shown = sys.stderr.isatty()
    bars: Bars | None = None
    tasks: dict[str, TaskID] = {}

    def report(name: str, done: int, total: int) -> None:
        nonlocal bars
        if not shown:
            return
        if bars is None:
            bars = _new_bars()
            bars.start()
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total or None)
        bars.update(tasks[name], completed=done, total=total or None)

    try:
        yield report
    finally:
        if bars is not None:
            bars.stop()


def _new_bars() -> "Bars":
    """rich takes 100 ms to import, so it waits until something is fetched."""
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
