"""The target program on a desktop, as tests see it."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagoda_agent.input.actions import Point
from tests.agent.rig.desktop import Desktop, wait_until

_APP = Path(__file__).with_name("target_app.py")


@cache
def _python() -> str | None:
    """A Python that has Tk."""
    for python in (sys.executable, "/usr/bin/python3"):
        tried = subprocess.run([python, "-c", "import tkinter"], capture_output=True)
        if tried.returncode == 0:
            return python
    return None


class Target:
    """`state()` is what `target_app.py` saw; its keys are in that file's `save`."""

    def __init__(self, desktop: Desktop, process: subprocess.Popen, file: Path):
        self.desktop = desktop
        self.process = process
        self._file = file

    def state(self) -> dict[str, Any]:
        return json.loads(self._file.read_text())

    def wait_for(self, what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first state that holds; `what` names it in the failure."""
        last: dict[str, Any] = {}

        def look() -> bool:
            last.update(self.state())
            return bool(holds(last))

        try:
            wait_until(what, look, self.process)
        except AssertionError as error:
            shown = {name: value for name, value in last.items() if name not in ("places", "moves")}
            raise AssertionError(f"{error}; the state is {shown}") from None
        return last

    async def saw(self, what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """`wait_for`, while asyncio's loop goes on."""
        return await asyncio.to_thread(self.wait_for, what, holds)

    def reset(self) -> None:
        """Forget everything, and put widgets back."""
        before = self.state()["resets"]
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for("the reset", lambda state: state["resets"] > before)

    def place(self, widget: str) -> tuple[int, int, int, int]:
        """x, y, width and height in pixels of the screen."""
        return tuple(self.state()["places"][widget])

    def share(self, x: float, y: float) -> Point:
        """A pixel of the screen as a share of it: the middle of the pixel."""
        width, height = self.state()["screen"]
        return Point((x + 0.5) / width, (y + 0.5) / height)

    def middle(self, widget: str) -> Point:
        x, y, width, height = self.place(widget)
        return self.share(x + width // 2, y + height // 2)


@contextmanager
def start_target(desktop: Desktop) -> Iterator[Target]:
    """The program, once its window fills the screen and has the keyboard."""
    python = _python()
    if python is None:
        pytest.skip("no Python with Tk (Debian: python3-tk)")
    file = desktop.folder / "target.json"
    file.unlink(missing_ok=True)  # of another one on this desktop
    process = desktop.spawn(python, str(_APP), str(file), log="target.log")
    try:
        wait_until("the target", file.exists, process)
        desktop.wait_for_window("Target", process)
        target = Target(desktop, process, file)
        width, height = desktop.size
        target.wait_for(
            "the full screen",
            lambda state: (
                state["places"]["pad"][:2] == [0, 0] and state["places"]["pad"][3] == height
            ),
        )
        yield target
    finally:
        desktop.end(process)
