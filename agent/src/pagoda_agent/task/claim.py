"""One agent for one computer: two that press its keys at once would do what neither meant."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pagoda_agent.base import env
from pagoda_agent.base.errors import DriverError
from pagoda_agent.consent.line import Memory


def claim(target: str) -> IO[str]:
    """A file that holds the claim until it is closed, or until the process ends in whatever way.

    `target` is a driver's. Raises DriverError, with its process, while another agent has it.
    """
    path = _path(target)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise DriverError(f"{path} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            owner = file.read().strip() or "not known"
        raise DriverError(
            f"Another agent operates {target} already (pid {owner}). End it first."
        ) from None
    # The lock is what counts; the file stays, as removing it would race with who opens it.
    try:
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            file.close()
        raise DriverError(f"{path} cannot be written: {error.strerror}.") from error
    return file


def line_memory(target: str, redact: Callable[[str], str]) -> Memory:
    """What agents left on the computer's input line. For who has claimed it; raises DriverError."""
    return Memory(_path(target).with_suffix(".line"), redact)


def _path(target: str) -> Path:
    name = hashlib.sha256(target.encode()).hexdigest()[:32]
    return env.cache_dir() / "run" / f"agent-{name}"
