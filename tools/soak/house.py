"""The server under load, and those that come after it."""

import signal
import tempfile
from pathlib import Path

from pagoda.bench.serverprocess import ServerProcess
from pagoda.config.engine import ModelConfig
from pagoda.engine.served.text_side import fetch_model
from tools.soak import processes
from tools.soak.gates import Asked

TEXT, VECTORS, SIGHT = "smollm2", "minilm", "vl"
MODELS = (TEXT, VECTORS, SIGHT)
# A small pool is one that long prompts fill, so that blocks are evicted and requests preempted.
FLAGS = (
    "--kv-cache-memory-bytes", "192M", "--tool-call-parser", "hermes",
    "--disable-uvicorn-access-log", "--disable-log-stats",
)  # fmt: skip
# Replies under way may be cut at the end of a server, but its end may not take longer.
_STOP_SECONDS = 60.0


class House:
    """One server at a time, in a temp folder of its own; `start` before anything else."""

    def __init__(self, text_model: str = TEXT, flags: tuple[str, ...] = ()):
        # Short: a socket's path has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="pg", dir="/tmp")
        self.folder = Path(self._folder.name)
        self.temp = self.folder / "t"
        self.temp.mkdir()
        eyes = self.folder / SIGHT
        eyes.mkdir()
        write_seer(eyes)
        self._words = [f"{TEXT}={text_model}", VECTORS, f"{SIGHT}={eyes}", *FLAGS, *flags]
        self._words += ["--kv-disk", str(self.folder / "kv"), "--port", "0"]
        self.files = {TEXT: _files_of(text_model), VECTORS: _files_of(VECTORS), SIGHT: eyes}
        self.starts = 0
        self.asked = Asked()
        """Of the server that runs now."""
        self._server: ServerProcess | None = None
        self._log: list[str] = []

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None
        return self._server

    @property
    def ended(self) -> bool:
        return self.server.process.poll() is not None

    @property
    def log(self) -> list[str]:
        """Of all servers so far."""
        return self._log + (self._server.log if self._server else [])

    def start(self) -> None:
        """Raises PagodaError when it does not become ready."""
        self._log = self.log
        self._server = ServerProcess(self._words, TMPDIR=str(self.temp), PAGODA_API_KEY="")
        self.asked = Asked()
        self.starts += 1
        self._server.wait_ready(120)

    def stop(self) -> int:
        """End the server as a supervisor does; its exit status."""
        return self.server.stop(signal.SIGTERM, _STOP_SECONDS)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._folder.cleanup()

    def engines(self) -> dict[str, int]:
        """The processes of loaded models, by name."""
        found = {}
        for pid in self._engine_pids():
            name = processes.reads(pid, self.files)
            if name is not None:
                found[name] = pid
        return found

    def _engine_pids(self) -> list[int]:
        """Without the processes that work on texts and media."""
        children = processes.children(self.server.process.pid)
        return [
            pid for pid in children if b"pagoda.engine.processes.main" in processes.command(pid)
        ]

    def roles(self) -> dict[int, str]:
        """Each process and what it is, the names of engines being those of their models."""
        return {self.server.process.pid: "server"} | {p: name for name, p in self.engines().items()}

    def left_behind(self) -> list[str]:
        """Files in the temp folder that no living engine owns, nor a request."""
        folders = [] if self.ended else self._engine_pids()
        found = [str(path.name) for path in self.temp.glob("pagoda-*")]
        spare = found[len(folders) :] + [path.name for path in self.temp.glob("pagoda-*/*.npy")]
        return spare + [p.name for p in self.temp.iterdir() if not p.name.startswith("pagoda-")]


def _files_of(model: str) -> Path:
    """The folder of a model's files, fetched if need be."""
    path = Path(fetch_model(ModelConfig(model=model)).model)
    return path if path.is_dir() else path.parent


def write_seer(folder: Path) -> None:
    """A tiny Qwen3-VL of random weights."""
    from tests.models import vision
    from tests.system.test_vision import write_tokenizer

    vision.save(vision.make(), folder)
    write_tokenizer(folder)
