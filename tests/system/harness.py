"""`pagoda serve` as a person starts it, in a world of its own: cache, sockets and children."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import openai

from pagoda.bench.serverprocess import ServerProcess


class Served(ServerProcess):
    def __init__(self, folder: Path, *words: str):
        """`folder` gets the server's cache and its sockets; its path must be short."""
        self.folder = folder
        self.environment = {
            "TMPDIR": str(folder),
            "PAGODA_CACHE": str(folder / "cache"),
            "PAGODA_API_KEY": "",
        }
        super().__init__([*words, "--port", "0"], **self.environment)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def processes(self) -> list[int]:
        """Every live process of this server, found by what only they were given."""
        mark = f"PAGODA_CACHE={self.folder / 'cache'}\0".encode()
        return [
            int(environ.parent.name)
            for environ in Path("/proc").glob("[0-9]*/environ")
            if mark in _read(environ)
        ]

    def engines(self) -> list[int]:
        """The server, its engine and its ranks, without those who work on texts and media."""
        workers = b"pagoda.engine.aside"
        return [
            pid for pid in self.processes() if workers not in _read(Path(f"/proc/{pid}/cmdline"))
        ]

    def engine_pid(self) -> int:
        (pid,) = set(self.engines()) - {self.process.pid}
        return pid

    def socket_folders(self) -> list[Path]:
        return list(self.folder.glob("pagoda-*"))

    def assert_nothing_left(self) -> None:
        assert self.processes() == []
        assert self.socket_folders() == []
        assert list(self.folder.glob("cache/run/*")) == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or another user's
        return b""


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)


def status_bytes(pid: int, key: str) -> int:
    """Bytes of a line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no {key}")


def environment_of(served: Served) -> dict[str, str]:
    return {**os.environ, **served.environment}
