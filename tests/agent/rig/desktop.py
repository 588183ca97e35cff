"""X desktops of their own for tests: a server without a screen, a window manager, programs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from tests.agent.rig.observer import Observer

# Generous: a start takes half a second on an idle machine.
PATIENCE = 60.0
# Windows can be focused, moved and closed. Debian's settings take keys such as Print away from
# programs, and all of them are grabbed again with every change of the keyboard's layout.
_WINDOW_MANAGER = """<?xml version="1.0"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew></focus>
  <mouse>
    <context name="Client">
      <mousebind button="Left" action="Press">
        <action name="Focus"/><action name="Raise"/>
      </mousebind>
    </context>
    <context name="Titlebar">
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="Press">
        <action name="Focus"/><action name="Raise"/>
      </mousebind>
    </context>
    <context name="Close">
      <mousebind button="Left" action="Click"><action name="Close"/></mousebind>
    </context>
  </mouse>
</openbox_config>
"""


def require(*programs: str) -> None:
    """Skip the test where one of the programs is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (`make test-agent` installs it)")


def wait_until(what: str, holds: Callable[[], object], process: subprocess.Popen | None = None):
    """The first true answer of `holds`; fails when the process ends or patience does."""
    end = time.monotonic() + PATIENCE
    while not (answer := holds()):
        assert process is None or process.poll() is None, f"ended while waiting for {what}"
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain for {what}"
        time.sleep(0.02)
    return answer


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Desktop:
    """A running display; `close` ends everything that was started on it."""

    def __init__(self, folder: Path, size: tuple[int, int]):
        self.folder = folder
        self.size = size
        self.display = ""
        self.vnc_port: int | None = None
        """Where the server itself speaks VNC (Xtigervnc)."""
        self.observer: Observer
        self._processes: list[subprocess.Popen] = []
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "XAUTHORITY"},
            # Programs find no settings of the person who runs the tests, and no session bus.
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "GDK_BACKEND": "x11",
            "NO_AT_BRIDGE": "1",
            "LC_ALL": "C.UTF-8",
        }

    @property
    def environment(self) -> dict[str, str]:
        return {**self._environment, "DISPLAY": self.display}

    def spawn(self, *argv: str, log: str | None = None, **options) -> subprocess.Popen:
        """A program on this display, which `end` or `close` ends. It writes to `log` or nowhere."""
        name = log or f"{Path(argv[0]).name}.log"
        with open(self.folder / name, "ab") as output:
            options = {"stdout": output, "stderr": output, "stdin": subprocess.DEVNULL} | options
            process = subprocess.Popen(argv, env=self.environment, cwd=self.folder, **options)
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen, seconds: float = 10) -> None:
        """Terminate it; kill it where it does not end in time."""
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()
        self._processes.remove(process)

    def run(self, *argv: str) -> str:
        """What a short program on this display prints."""
        done = subprocess.run(
            argv, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def windows(self, title: str) -> list[str]:
        """Ids of the visible windows of that title, as xdotool takes them."""
        found = subprocess.run(
            ["xdotool", "search", "--onlyvisible", "--name", f"^{title}$"],
            env=self.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return found.stdout.split()

    def wait_for_window(self, title: str, process: subprocess.Popen | None = None) -> str:
        """Its id, once it is on the screen and has the keyboard."""
        window = wait_until(f"the window {title!r}", lambda: self.windows(title), process)[0]
        wait_until(
            f"the keyboard in {title!r}",
            lambda: self.run("xdotool", "getactivewindow").strip() == window,
            process,
        )
        return window

    def wait_until_gone(self, window: str) -> None:
        wait_until(
            "the window's end",
            lambda: (
                subprocess.run(
                    ["xdotool", "getwindowname", window], env=self.environment, capture_output=True
                ).returncode
            ),
        )

    def place(self, window: str) -> tuple[int, int, int, int]:
        """x, y, width and height of a window, in pixels of the screen."""
        shell = self.run("xdotool", "getwindowgeometry", "--shell", window)
        values = dict(line.split("=") for line in shell.split())
        return tuple(int(values[name]) for name in ("X", "Y", "WIDTH", "HEIGHT"))

    def close(self) -> None:
        if hasattr(self, "observer"):
            self.observer.close()
        for process in reversed(self._processes.copy()):
            self.end(process)


def start_server(desktop: Desktop, program: str, *arguments: str) -> subprocess.Popen:
    """An X server with a free number, which becomes the desktop's display."""
    reading, writing = os.pipe()
    with open(reading, "rb") as numbers:
        server = desktop.spawn(
            program, "-displayfd", str(writing), "-nolisten", "tcp", *arguments,
            pass_fds=(writing,),
        )  # fmt: skip
        os.close(writing)
        number = numbers.readline().decode().strip()
    assert number, (desktop.folder / f"{program}.log").read_text()
    desktop.display = f":{number}"
    return server


@contextmanager
def start_desktop(
    folder: Path,
    kind: Literal["xvfb", "tigervnc"] = "xvfb",
    size: tuple[int, int] = (1280, 720),
    options: tuple[str, ...] = (),
) -> Iterator[Desktop]:
    """A desktop with openbox. `options` are further arguments of its X server.

    Xtigervnc lets everyone on this machine in by VNC, unless the options say otherwise.
    """
    program = {"xvfb": "Xvfb", "tigervnc": "Xtigervnc"}[kind]
    require(program, "openbox", "xdotool")
    folder.mkdir(parents=True, exist_ok=True)
    desktop = Desktop(folder, size)
    geometry = f"{size[0]}x{size[1]}"
    if kind == "xvfb":
        arguments = ["-screen", "0", f"{geometry}x24"]
    else:
        desktop.vnc_port = free_port()
        arguments = ["-geometry", geometry, "-depth", "24", "-rfbport", str(desktop.vnc_port)]
        arguments += ["-interface", "127.0.0.1", "-SecurityTypes", "None"]
    try:
        server = start_server(desktop, program, *arguments, *options)
        desktop.observer = Observer(desktop.display)
        desktop.observer.stop_repeating()
        (folder / "openbox.xml").write_text(_WINDOW_MANAGER)
        manager = desktop.spawn("openbox", "--config-file", str(folder / "openbox.xml"))
        wait_until(
            "openbox", lambda: desktop.observer.root_has("_NET_SUPPORTING_WM_CHECK"), manager
        )
        if desktop.vnc_port:
            wait_until("VNC", lambda: listens(desktop.vnc_port), server)
        yield desktop
    finally:
        desktop.close()


@contextmanager
def start_x11vnc(desktop: Desktop, *options: str) -> Iterator[int]:
    """The port where x11vnc serves the desktop, by default to everyone on this machine."""
    require("x11vnc")
    port = free_port()
    process = desktop.spawn(
        "x11vnc", "-display", desktop.display, "-rfbport", str(port), "-listen", "127.0.0.1",
        "-no6", "-forever", "-shared", "-quiet", "-norc", "-repeat", *(options or ("-nopw",)),
    )  # fmt: skip
    try:
        wait_until("x11vnc", lambda: listens(port), process)
        yield port
    finally:
        # After a login that failed it does not hear the signal.
        desktop.end(process, seconds=2)
