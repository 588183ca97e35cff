"""One engine process as its parent holds it: started, watched, ended, and cleaned up after."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagoda.base.machine import oom_kills
from pagoda.config.engine import EngineConfig
from pagoda.engine.processes.spawn import ENGINE, Spawner, spawn
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.processes.transport import ClientEnd, Launch, MemoryRoom

# A socket's path may have 107 bytes on Linux and 103 on macOS, the file's name included.
_LONGEST_FOLDER = 80
_LESS_MEMORY = "choose a smaller quantization, or lower --kv-cache-memory-bytes or --max-model-len"


@dataclass(frozen=True)
class LaunchOptions:
    """How the engine process runs, apart from the engine's own config."""

    log_level: str = "info"
    log_format: str = "text"
    startup_timeout: float = 0.0
    """Seconds; 0 waits for ever."""
    room: MemoryRoom | None = None
    """None: the engine is alone on the machine."""
    module: str = ENGINE
    """What runs there; a bench has an engine of its own that computes nothing."""
    spawner: Spawner = spawn
    supervision: SupervisionLimits = SupervisionLimits()


class EngineChild:
    """Starts the engine process at once; torch is imported there and never here."""

    def __init__(self, config: EngineConfig, options: LaunchOptions):
        self._oom_kills = oom_kills()
        self.folder = private_folder()
        self.end = ClientEnd(self.folder)
        self.process, launched_at = options.spawner(options.module)
        self._finalizer = weakref.finalize(self, _clean_up, self.process, self.folder)
        launch = Launch(
            config,
            str(self.folder),
            options.log_level,
            options.log_format,
            options.startup_timeout,
            launched_at,
            options.room,
        )
        assert self.process.stdin is not None
        # A process that is already dead says so through its exit status.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(launch) + b"\n")
            self.process.stdin.flush()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """As subprocess has it; None while it runs."""
        return self.process.returncode

    def watch(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[["EngineChild"], None],
        on_exit: Callable[["EngineChild"], None],
    ) -> None:
        """Have `loop` call `on_message` when messages may be there, and `on_exit` once."""
        loop.add_reader(self.end.fileno(), on_message, self)
        loop.call_soon(on_message, self)
        threading.Thread(target=self._wait_for_exit, args=(loop, on_exit), daemon=True).start()

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of no more messages."""
        loop.remove_reader(self.end.fileno())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def exit_cause(self) -> str:
        """Why the process ended, as far as its exit status tells."""
        return exit_cause(self.process.returncode, "The engine process", self._oom_kills)

    def close(self) -> None:
        """End the process if it still runs, and remove its sockets. Harmless when repeated."""
        self.end.close()
        self._finalizer()

    def _wait_for_exit(
        self, loop: asyncio.AbstractEventLoop, on_exit: Callable[["EngineChild"], None]
    ) -> None:
        self.process.wait()
        # A closed loop refuses: then nobody is left who wants to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(on_exit, self)


def exit_cause(code: int | None, what: str, before: tuple[int, int] | None = None) -> str:
    """Why a process ended, in a sentence with `what` for its subject. `before` is what
    `machine.oom_kills` said when it was started."""
    if code is None or code >= 0:
        return f"{what} ended with exit status {code}; its log says why."
    name = signal.Signals(-code).name
    known = f"; {_sender(before, oom_kills())}" if name == "SIGKILL" else ""
    return f"{what} was ended by {name}{known}."


def _sender(before: tuple[int, int] | None, now: tuple[int, int] | None) -> str:
    """What is known of who sent a SIGKILL; the kernel tells nobody."""
    if before is None or now is None:
        return f"whether memory ran out is not known here (see dmesg); if it did, {_LESS_MEMORY}"
    if now == before:
        return (
            "the system ended no process for lack of memory in its time, so something else sent "
            "it: a person, a supervisor, or a guard of memory such as systemd-oomd"
        )
    where = " of this container" if now[1] > before[1] else ""
    return f"the system ended a process{where} for lack of memory in its time: {_LESS_MEMORY}"


def private_folder() -> Path:
    """A fresh folder that only this user can enter (mkdtemp makes it 0700)."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_FOLDER:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="pagoda-", dir=parent))


def _clean_up(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
