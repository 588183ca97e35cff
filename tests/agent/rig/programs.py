"""Ordinary programs as targets: a dialog of zenity's, a terminal."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.agent.rig.desktop import Desktop, require


class Dialog:
    """A zenity dialog with the title `Dialog`."""

    def __init__(self, process: subprocess.Popen, window: str):
        self.process = process
        self.window = window

    def answer(self, timeout: float = 60) -> tuple[int, str]:
        """Its exit status (0 for OK, 1 for Cancel) and what it printed, once it was closed."""
        output, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, output.removesuffix("\n")


@contextmanager
def zenity(desktop: Desktop, *arguments: str) -> Iterator[Dialog]:
    """`zenity(desktop, "--entry", "--text=Name?")`, once it has the keyboard."""
    require("zenity")
    process = desktop.spawn(
        "zenity", "--title=Dialog", *arguments, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Dialog(process, desktop.wait_for_window("Dialog", process))
    finally:
        desktop.end(process)


@contextmanager
def xterm(desktop: Desktop, *command: str) -> Iterator[str]:
    """The id of the window of a terminal with a plain shell (or a command) in the desktop's
    folder, once it has the keyboard."""
    require("xterm")
    process = desktop.spawn(
        "xterm", "-T", "Terminal", "-xrm", "XTerm*allowTitleOps: false", "-geometry", "80x24+40+40",
        "-e", *(command or ("sh",)),
    )  # fmt: skip
    try:
        yield desktop.wait_for_window("Terminal", process)
    finally:
        desktop.end(process)
