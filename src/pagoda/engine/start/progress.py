"""Start-up as a person watches it: a bar on a terminal, a log line now and then elsewhere."""

import sys
import time
from typing import Any

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.core.messages import EngineProgress

log = get_logger(__name__)

WEIGHTS_PHASE = "load weights"
"""Config and headers are checked before the first byte of this phase."""
# Whatever is done sooner needs no bar.
_QUIET_SECONDS = 1.0
_LINE_SECONDS = 10.0


class StartupDisplay:
    """Shows the bytes of a phase that takes more than a second."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._phase = ""
        self._begun = self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, progress: EngineProgress) -> None:
        now = time.monotonic()
        if progress.phase != self._phase:
            self.close()
            self._phase, self._begun, self._last_line = progress.phase, now, now
        if not progress.total:
            return
        if self._terminal:
            self._show_bar(progress, now)
        elif now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            log.info(
                "%s: %s of %s",
                progress.phase, format_bytes(progress.done), format_bytes(progress.total),
            )  # fmt: skip

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, progress: EngineProgress, now: float) -> None:
        if self._bar is None:
            if now - self._begun < _QUIET_SECONDS or progress.done >= progress.total:
                return
            self._bar = _new_bar()
            self._task = self._bar.add_task(progress.phase, total=progress.total)
            self._bar.start()
        self._bar.update(self._task, completed=progress.done, total=progress.total)


def _new_bar() -> Any:
    """rich takes 100 ms to import, so it is when a bar is due."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class PromptDisplay:
    """Finished prompts of a batch, on a terminal."""

    def __init__(self, total: int, show: bool):
        self._total = total
        self._show = show and sys.stderr.isatty()
        self._begun = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "PromptDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, finished: int) -> None:
        if not self._show:
            return
        if self._bar is None:
            if time.monotonic() - self._begun < _QUIET_SECONDS:
                return
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress

            columns = (*Progress.get_default_columns(), MofNCompleteColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("prompts", total=self._total)
            self._bar.start()
        self._bar.update(self._task, completed=finished)
