"""Processes that a call starts: each leads a group, which is killed as a whole."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from typing import IO

from pagoda.base.env import child_environment

_NICE = 10
"""The engine's work goes first."""
_SECRETS = frozenset({"VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})


def environment() -> dict[str, str]:
    """The server's, without its keys."""
    return {
        name: value
        for name, value in child_environment().items()
        if name not in _SECRETS and not name.startswith("PAGODA_")
    }


@contextlib.asynccontextmanager
async def started(
    command: Sequence[str], cwd: str | None, stdin: int | IO[bytes], stdout: int | IO[bytes]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is gone when the block ends, with all that it started. Raises OSError.

    It runs with less priority than the server, and so does all that it starts. Neither end is a
    pipe of asyncio's: waiting for a process would be waiting for whoever has inherited its output.
    """
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=environment(), stdin=stdin, stdout=stdout,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    # It may have ended, or started others.
    with contextlib.suppress(ProcessLookupError):
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        os.setpriority(os.PRIO_PGRP, process.pid, niceness)
    try:
        yield process
    finally:
        kill_group(process)
        await process.wait()


def kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
