"""What a phase finds, on disk as soon as it is found."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULTS = ("raise", "hang", "kill")
"""What a test may have a phase do, behind the first thing that it found."""


class Found:
    """The values of one phase, a file of JSON that is whole at any time."""

    def __init__(self, path: Path, fault: str | None = None):
        self._path, self._fault = path, fault
        self.values: dict[str, Any] = {}

    def put(self, name: str, value: object) -> None:
        """Values that JSON does not know become text."""
        self.values[name] = value
        write(self._path, self.values)
        fault, self._fault = self._fault, None
        if fault is not None:
            _suffer(fault)


class Clock:
    """Until when a phase has time, by time.time()."""

    def __init__(self, until: float, now: Callable[[], float] = time.time):
        self._until, self._now = until, now

    def left(self) -> float:
        """Seconds."""
        return self._until - self._now()


def write(path: Path, values: object) -> None:
    """As JSON: the whole of it, or what was there before."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(values, indent=1, default=str))
    beside.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Nothing where there is nothing, or nothing whole."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _suffer(fault: str) -> None:
    if fault == "raise":
        raise RuntimeError("as a test has it")
    if fault == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGKILL)
