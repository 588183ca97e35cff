"""`serve_fake.py` as a process: the whole server but for its engine."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]


class Served:
    def __init__(
        self,
        *how: str,
        cache: Path,
        port: int | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.serve_fake", str(self.port), *how],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": f"{os.environ.get('PYTHONPATH') or ROOT / 'src'}:{ROOT}",
                 "PAGODA_CACHE": str(cache), **environment},
        )  # fmt: skip
        self._settled = threading.Event()
        """It is ready, or its log has ended."""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if "Ready:" in line:
                self._settled.set()
        self._settled.set()

    def wait_ready(self) -> None:
        self._settled.wait(30)
        assert "Ready:" in self.log, self.log

    def exit_code(self, seconds: float = 20) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.exit_code()
        assert self.process.stderr is not None
        self.process.stderr.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
