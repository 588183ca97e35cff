"""The person at the terminal: one reader of standard input, whose questions can be taken back."""

import asyncio
import os
import sys
import termios

from pagoda_agent.base.printable import for_terminal
from pagoda_agent.words import told


class Keyboard:
    """Reads lines while the event loop goes on; used in a running loop."""

    def __init__(self) -> None:
        self.there = sys.stdin.isatty()
        """Whether somebody can be asked."""
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._file = sys.stdin.fileno() if self.there else -1
        if self.there:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    async def ask(self, prompt: str) -> str | None:
        """The line that is entered after the question is shown; None at the end of the input."""
        # What was typed before the question was there is no answer to it.
        termios.tcflush(self._file, termios.TCIFLUSH)
        while not self._lines.empty():
            self._lines.get_nowait()
        print(for_terminal(told(prompt)), end="", flush=True)
        try:
            return await self._lines.get()
        except asyncio.CancelledError:
            print(flush=True)
            raise

    def close(self) -> None:
        if self.there:
            asyncio.get_running_loop().remove_reader(self._file)

    def _read(self) -> None:
        try:
            typed = os.read(self._file, 4096).decode(errors="replace")
        except OSError:  # the terminal is gone
            typed = ""
            self.close()
        if not typed:
            self._lines.put_nowait(None)
        for line in typed.splitlines():
            self._lines.put_nowait(line)
