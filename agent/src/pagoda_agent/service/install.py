"""Installs what a driver lacks, on request, and says what the installer says meanwhile.

Nothing that a request carries reaches a command line: a driver's name chooses among the packages of
drivers/needs.py. What needs an administrator is never installed, its command is only shown.
"""

import asyncio
import codecs
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_agent.base import env
from pagoda_agent.base.errors import AgentError
from pagoda_agent.drivers.needs import EXTRAS, Lacks, install_command, lacks
from pagoda_agent.task.control import StateError

_REFUSED = (
    "Other machines reach this agent, so its page installs nothing. Type the command in a "
    "terminal, or start the agent with --allow-install."
)
# An installer that is interrupted takes back what it began.
_END_SECONDS = 10.0
_QUIET = {
    "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off",
    "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1",
}  # fmt: skip


@dataclass
class Installer:
    allowed: bool
    installed: Callable[[str], Awaitable[None]]
    """Called with a driver that lacks nothing any more."""
    command: Callable[[Sequence[str]], list[str]] = install_command

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def shown(self) -> dict[str, Any]:
        """Every driver, what it lacks and what installs it; why the page may not, if so."""
        drivers = [_shown(lacks(driver)) for driver in EXTRAS]
        return {"drivers": drivers, "refused": "" if self.allowed else _REFUSED}

    def begin(self, driver: str) -> AsyncGenerator[dict[str, Any]]:
        """What the installer says, `{"text"}`, and at last `{"error"}`, empty where the driver
        lacks nothing any more. Whoever stops listening stops the installation.

        Raises StateError and AgentError where nothing is begun.
        """
        if driver not in EXTRAS:
            raise AgentError(f"There is no driver {driver!r}; known: {', '.join(EXTRAS)}.")
        if not self.allowed:
            raise StateError(_REFUSED)
        if self._task is not None and not self._task.done():
            raise StateError("Something is being installed; wait for its end, or cancel it.")
        missing = lacks(driver).packages
        if not missing:
            raise StateError(f"The {driver} driver lacks nothing.")
        said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        # A task of its own: the request's end must not keep it from ending the installer well.
        self._task = asyncio.create_task(self._install(driver, missing, said))
        return self._told(self._task, said)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _told(
        self, task: asyncio.Task[None], said: asyncio.Queue[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        try:
            while True:
                part = await said.get()
                yield part
                if "error" in part:
                    return
        finally:
            task.cancel()

    async def _install(
        self, driver: str, packages: Sequence[str], said: asyncio.Queue[dict[str, Any]]
    ) -> None:
        error = "The installation was stopped."
        try:
            code = await _run(self.command(packages), said)
            if code:
                error = f"The installation failed (exit status {code})."
            elif lacks(driver).packages:
                error = "It was installed, but this agent does not find it; start the agent again."
            else:
                await self.installed(driver)
                error = ""
        except (AgentError, OSError) as problem:
            error = str(problem)
        finally:
            said.put_nowait({"error": error})


async def _run(command: list[str], said: asyncio.Queue[dict[str, Any]]) -> int:
    """The exit status. Cancelled, it interrupts the installer and waits for its end."""
    process = await asyncio.create_subprocess_exec(
        *command, env=env.everything() | _QUIET, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    try:
        while data := await process.stdout.read(4096):
            said.put_nowait({"text": decode(data)})
        return await process.wait()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    for how in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)


def _shown(missing: Lacks) -> dict[str, Any]:
    shown: dict[str, Any] = {"driver": missing.driver, "sentence": "", "command": ""}
    if missing.packages:
        shown |= {"sentence": missing.sentence, "command": missing.command}
    if missing.system:
        shown["system"] = missing.system._asdict()
    return shown
