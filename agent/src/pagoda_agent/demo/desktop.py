"""The computer of the demonstration: an X display that nobody sees, with one program on it."""

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pagoda_agent.base import env
from pagoda_agent.base.errors import ConfigError, DriverError

WIDTH, HEIGHT = 1024, 640
_START_SECONDS = 60.0
_END_SECONDS = 5.0


def check_installed() -> None:
    """ConfigError with what to install."""
    missing = []
    if shutil.which("Xvfb") is None:
        missing.append("xvfb")
    if importlib.util.find_spec("_tkinter") is None:
        missing.append("python3-tk")
    if missing:
        raise ConfigError(
            f"The demonstration needs a display and Tk: sudo apt install {' '.join(missing)} "
            "(python3-tk is for Debian's own Python; others bring Tk along or are built with it)."
        )


@dataclass
class Desktop:
    display: str
    """As in DISPLAY."""
    form: asyncio.subprocess.Process
    state: dict[str, Any] = field(default_factory=dict)
    """What the form told last; see `form.Form.state`."""
    shown: asyncio.Event = field(default_factory=asyncio.Event)

    async def renew(self) -> None:
        """Have the form emptied."""
        assert self.form.stdin is not None
        self.form.stdin.write(b"renew\n")
        await self.form.stdin.drain()

    async def listen(self) -> None:
        assert self.form.stdout is not None
        async for line in self.form.stdout:
            self.state = json.loads(line)
            self.shown.set()


@contextlib.asynccontextmanager
async def desktop() -> AsyncIterator[Desktop]:
    """The display and its program, until the block ends. Should this process be killed, the program
    ends with its input, and the display with its last program."""
    async with contextlib.AsyncExitStack() as stack:
        display = await _start_display(stack)
        form = await _start(
            stack, sys.executable, "-m", "pagoda_agent.demo.form", str(WIDTH), str(HEIGHT),
            env={**env.everything(), "DISPLAY": display},
        )  # fmt: skip
        running = Desktop(display, form)
        listening = asyncio.create_task(running.listen())
        stack.callback(listening.cancel)
        shown = asyncio.create_task(running.shown.wait())
        stack.callback(shown.cancel)
        await asyncio.wait(
            (shown, listening), timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if not running.shown.is_set():
            raise DriverError("The demonstration's program did not start; is Tk installed whole?")
        yield running


async def _start_display(stack: contextlib.AsyncExitStack) -> str:
    """An X server under a free number, which ends with its last client."""
    reading, writing = os.pipe()
    with open(reading, "rb", closefd=True) as numbers:
        try:
            await _start(
                stack, "Xvfb", "-displayfd", str(writing), "-screen", "0", f"{WIDTH}x{HEIGHT}x24",
                "-nolisten", "tcp", "-terminate", pass_fds=(writing,),
            )  # fmt: skip
        finally:
            os.close(writing)
        async with asyncio.timeout(_START_SECONDS):
            number = (await asyncio.to_thread(numbers.readline)).decode().strip()
    if not number:
        raise DriverError("Xvfb did not start; `Xvfb :99` in a terminal says why.")
    return f":{number}"


async def _start(
    stack: contextlib.AsyncExitStack, *command: str, **options: Any
) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process, which ends the others in their order
        **options,
    )  # fmt: skip
    stack.push_async_callback(_end, process)
    return process


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
