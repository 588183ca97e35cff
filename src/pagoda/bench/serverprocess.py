"""`pagoda serve` in a process of its own, as a person would start it."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from pagoda.base.env import child_environment
from pagoda.base.errors import PagodaError

_READY = re.compile(r"Ready: (.+) at (http://\S+)/v1( \(.*\))?$")


class ServerProcess:
    """Started at once; as a context manager it is stopped at the end, whatever happens."""

    def __init__(
        self, words: Sequence[str], command: Sequence[str] = ("pagoda", "serve"), **environment: str
    ):
        """`words` follow `pagoda serve`, or the module and its first words in `command`;
        `environment` are changes to this process's own."""
        self.name = ""
        """The model's name in the API, once ready."""
        self.url = ""
        """Without /v1, once ready."""
        self.log: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command, *words],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            env=child_environment(**environment),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self, seconds: float = 600.0) -> None:
        """Raises PagodaError with the end of the log if the server ends or takes longer."""
        self._ready.wait(seconds)
        if not self.url:
            self.stop(seconds=0)
            tail = "\n".join(self.log[-20:])
            raise PagodaError(f"The server did not become ready; its log ends with:\n{tail}")

    def stop(self, number: int = signal.SIGINT, seconds: float = 30.0) -> int:
        """Send the signal and wait, then kill; the exit status. Harmless when repeated."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        """The exit status, with the log complete; killed if it takes longer."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        # Another process may hold the pipe open: the reader is not waited for without end.
        self._reader.join(5)
        return code

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip("\n"))
                found = _READY.search(self.log[-1])
                if found:
                    self.name, self.url = found[1], found[2]
                    self._ready.set()
        self._ready.set()
