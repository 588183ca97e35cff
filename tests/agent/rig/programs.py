"""Ordinary programs as targets: a dialog of zenity's, a terminal, a browser before a site."""

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.rig.desktop import Desktop, require, wait_until


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


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def datasheet(desktop: Desktop, folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Chromium on a page that is one link to a file: (where a click downloads it to, its bytes)."""
    require("chromium")
    site, profile, downloads = folder / "site", folder / "profile", folder / "downloads"
    site.mkdir()
    content = b"\x00sheet" * 1000
    (site / "datasheet.bin").write_bytes(content)
    (site / "index.html").write_text(
        "<title>Parts</title><style>a{position:fixed;inset:0;background:#def}</style>"
        "<a href='datasheet.bin' download>Raspberry Pi datasheet</a>"
    )
    handler = functools.partial(_QuietHandler, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    preferences = {"download": {"default_directory": str(downloads), "prompt_for_download": False}}
    (profile / "Default").mkdir(parents=True)
    (profile / "Default" / "Preferences").write_text(json.dumps(preferences))
    browser = desktop.spawn(
        "chromium", "--no-sandbox", "--no-first-run", "--disable-gpu", "--start-maximized",
        "--password-store=basic", f"--user-data-dir={profile}",
        f"http://127.0.0.1:{server.server_port}/",
    )  # fmt: skip
    try:
        wait_until("the page", lambda: desktop.windows("Parts - Chromium"), browser)
        yield downloads / "datasheet.bin", content
    finally:
        desktop.end(browser)
        server.shutdown()
        server.server_close()
