"""The process of an engine, which may be started before it is known what it is to do."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

ENGINE = "pagoda.engine.processes.main"


class Spawned(NamedTuple):
    process: "subprocess.Popen[bytes]"
    """Its stdin is a pipe, whose end tells it to leave."""
    at: float
    """time.time() of its start."""


Spawner = Callable[[str], Spawned]
"""Starts a module of Python in a process of its own."""


def spawn(module: str) -> Spawned:
    at = time.time()
    with _interrupts_wait():
        # -P: a file named torch.py in the working folder must not be imported.
        command = [sys.executable, "-P", "-m", module]
        return Spawned(subprocess.Popen(command, stdin=subprocess.PIPE), at)


@contextlib.contextmanager
def spawned_early() -> Iterator[Spawner]:
    """Start an engine's process, which imports what it needs for 2 s, and yield what first gives
    out this one and starts others when it is called again. It ends here where nobody took it."""
    waiting = [spawn(ENGINE)]

    def next_one(module: str) -> Spawned:
        return waiting.pop() if waiting and module == ENGINE else spawn(module)

    try:
        yield next_one
    finally:
        for early, _ in waiting:
            early.kill()
            early.communicate()


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """A terminal sends Ctrl-C to all of its processes. What is started here never gets it: its
    parent tells it to leave. The parent gets it behind the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
