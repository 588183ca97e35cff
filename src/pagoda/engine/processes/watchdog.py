"""Notices that nothing moves any more, and writes down where everything stands."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from pagoda.base.log import get_logger
from pagoda.base.machine import read_meminfo, resident_bytes, shared_memory_free
from pagoda.base.units import format_bytes, format_seconds
from pagoda.core.messages import EngineHeartbeat
from pagoda.engine.processes.activity import Activity

log = get_logger(__name__)

STALL_SECONDS = 30.0
_PERIOD_SECONDS = 1.0
# An idle process tells less often: each word costs 100 us, here and where it is heard.
_IDLE_LOOKS = 2
# A look that comes so much later than it should: the process was stopped, or its lock was held.
_STOPPED_SECONDS = 5.0


class Watchdog(Activity):
    """A thread that reports after `stall_seconds` without a `beat`, then at twice that time
    and so on, that calls `give_up` when `deadline_seconds` pass before `disarm`, and that `tell`s
    about once a second what goes on.
    """

    def __init__(
        self,
        *,
        stall_seconds: float = STALL_SECONDS,
        deadline_seconds: float = 0.0,
        give_up: Callable[[str], None] | None = None,
        tell: Callable[[EngineHeartbeat], None] = lambda heartbeat: None,
    ):
        super().__init__()
        self._stall = stall_seconds
        self._started = self.begun
        self._deadline = deadline_seconds if give_up is not None else 0.0
        self._give_up = give_up
        self._tell = tell
        self._next_report = stall_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self, phase: str | None) -> None:
        super().beat(phase)
        self._next_report = self._stall

    def disarm(self) -> None:
        """Drop the deadline: the engine is ready."""
        self._deadline = 0.0

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        period = min(_PERIOD_SECONDS, self._stall / 4, self._deadline / 4 or _PERIOD_SECONDS)
        last = self.begun
        looks = 0
        while not self._closed.wait(period):
            now = time.monotonic()
            if now - last > period + _STOPPED_SECONDS:
                self.excuse()
            last = now
            looks += 1
            if self.phase is not None or looks % _IDLE_LOOKS == 0:
                self._tell(self.heartbeat())
            self._check(now)

    def _check(self, now: float) -> None:
        phase, silent = self.phase, now - self.begun
        if self._deadline and now - self._started >= self._deadline and self._give_up is not None:
            give_up, self._give_up = self._give_up, None
            self._deadline = 0.0
            self._report(phase, silent)
            give_up(
                f"Start-up was not finished after {format_seconds(now - self._started)} "
                f"(phase: {phase}); --startup-timeout ends it."
            )
        elif phase is not None and silent >= self._next_report:
            first = self._next_report == self._stall
            self._next_report = 2 * silent
            self._report(phase, silent, stacks=not first)

    def _report(self, phase: str | None, silent: float, *, stacks: bool = True) -> None:
        """The first silence may be a slow disk's; pages of stacks would only frighten."""
        lines = situation(phase, silent)
        for line in lines if stacks else lines[:1]:
            log.warning("%s", line)


def situation(phase: str | None, silent: float) -> list[str]:
    """Phase, process, memory and the Python stack of each thread, as lines for the log."""
    shm = shared_memory_free()
    lines = [
        f"No progress for {format_seconds(silent)} in phase: {phase} "
        f"(process {os.getpid()}, resident {format_bytes(resident_bytes())}, free memory "
        f"{format_bytes(read_meminfo()['MemAvailable'])}, free /dev/shm "
        f"{'none' if shm is None else format_bytes(shm)})."
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        lines.append(f"  thread {names.get(ident, ident)}:")
        for entry in traceback.extract_stack(frame):
            lines.append(f"    {entry.filename}:{entry.lineno} in {entry.name}: {entry.line}")
    return lines
