"""An engine's process that is kept running: watched, started again when it ends or stands still.

starting --> ready --> starting (again, at once or after a while) ...
    \\----------> dead (given up)              any --> stopped (shutdown)
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pagoda.base.errors import EngineDeadError, EngineKilledError
from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import (
    EngineDied,
    EngineHeartbeat,
    EngineMessage,
    EngineProgress,
    EngineReady,
    Shutdown,
)
from pagoda.engine.processes.child import EngineChild, LaunchOptions
from pagoda.engine.processes.supervision import Supervision
from pagoda.engine.start.progress import StartupDisplay

log = get_logger(__name__)

# Messages handled before other tasks of the loop get their turn.
_BATCH = 64
# After the process ended, its last words may still be on their way through ZMQ's own thread.
_LAST_WORDS_SECONDS = 0.1
# A process with a time limit of its own gives up first: it can tell where it stands.
_REPORT_SECONDS = 3.0
# What the process may take to leave beyond the time its requests were given, and to write what it
# keeps: 4 GB on a slow disk.
_EXIT_SECONDS = 1.5
_SAVE_SECONDS = 60.0
_STOPPED = "The engine was stopped."

State = Literal["starting", "ready", "dead", "stopped"]
Progress = Callable[[EngineProgress], None]
Spawn = Callable[[EngineConfig, LaunchOptions], EngineChild]


class KeptEngine:
    """Launch it anywhere; everything else belongs to one event loop."""

    def __init__(self, config: EngineConfig, options: LaunchOptions, spawn: Spawn = EngineChild):
        """`spawn` starts the process, and does so again when it died."""
        self.config = config
        self.state: State = "starting"
        self.cause: str | None = None
        """Why the engine is not ready, once it has died; None while all is well."""
        self.ready: EngineReady | None = None
        """What the engine said when it was last ready; `state` tells whether it is."""
        self.phase = "launch"
        self.down_since = time.monotonic()
        """time.monotonic() of the launch, or of the death, from which it was not ready."""
        self.restarts = 0
        self.out_of_memory = False
        """It died because its model does not fit."""
        self.died_at: float | None = None
        """time.monotonic() when it was given up."""
        self._said_why = True
        self._options = options
        self._spawn = spawn
        self._child = spawn(config, options)
        self._supervision = Supervision(options.supervision)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settled = asyncio.Event()
        self._exited = asyncio.Event()
        self._progress: Progress | None = None
        self._last_words: str | None = None
        self._stopping = False
        self._looks: asyncio.TimerHandle | None = None
        self._restart: asyncio.TimerHandle | None = None
        """Set while no process runs, for its turn is yet to come."""
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Id of the last process."""
        return self._child.pid

    @property
    def stalled(self) -> str | None:
        """What stands still in the engine and for how long, before it is killed for it."""
        stall = self._supervision.stall
        return None if stall is None else f"{stall.words}."

    @property
    def silent_seconds(self) -> float:
        """Since the engine said anything; a working one says something each second."""
        if self._loop is None or self._exited.is_set():
            return 0.0
        return self._supervision.silent_seconds(self._loop.time())

    async def wait_ready(
        self, timeout: float | None = None, progress: Progress | None = None
    ) -> EngineReady:
        """Wait until the engine serves. `progress` hears of each phase and of bytes loaded;
        by default they show on stderr.

        Raises EngineDeadError with the cause if it dies first or is given up, or after `timeout`
        seconds, and EngineKilledError where only its exit status tells.
        """
        self._attach()
        if timeout is not None and self._options.startup_timeout:
            timeout += _REPORT_SECONDS
        display = StartupDisplay()
        self._progress = progress or display.update
        try:
            await asyncio.wait_for(self._settled.wait(), timeout)
        except TimeoutError:
            late = (
                f"The engine was not ready after {format_seconds(timeout or 0)} "
                f"(phase: {self.phase})."
            )
            if self.restarts:
                raise EngineDeadError(late) from None
            self._kill(late)
            await self._settled.wait()
        finally:
            self._progress = None
            display.close()
        if self.state != "ready" or self.ready is None:
            kind = EngineDeadError if self._said_why else EngineKilledError
            raise kind(self.cause or _STOPPED)
        return self.ready

    async def wait_end(self) -> None:
        """Until it was stopped or given up."""
        await self._exited.wait()

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """End the process: running requests get `drain_seconds`; nothing is left behind."""
        self._attach()
        self._stopping = True
        if self._restart is not None:
            self._restart.cancel()
            self._start_again()
        if self.state == "ready":
            self._child.end.send(Shutdown(drain_seconds))
            saving = _SAVE_SECONDS if self.config.cache.kv_disk is not None else 0.0
            patience = drain_seconds + saving + _EXIT_SECONDS
            try:
                await asyncio.wait_for(self._exited.wait(), patience)
            except TimeoutError:
                log.warning("The engine did not leave in time and is killed.")
        self._child.kill()
        await self._exited.wait()
        if self._ending is not None:
            await self._ending

    def kill(self) -> None:
        """End the process at once; works without an event loop, and after its end."""
        self._stopping = True
        if self._loop is None or self._loop.is_closed():
            self._child.close()
        else:
            self._child.kill()

    def _on_ready(self) -> None:
        """It serves, for the first time or again."""

    def _on_move(self, folder: Path) -> None:
        """Another process was started, and what it reads belongs into `folder`."""

    def _on_death(self, cause: str) -> None:
        """The process ended, and another one will come."""

    def _on_end(self, cause: str) -> None:
        """The process ended, and no other one will come."""

    def _require_ready(self) -> EngineReady:
        self._attach()
        if self.state == "ready" and not self._stopping and self.ready is not None:
            return self.ready
        raise not_ready(self.state, self._stopping, self.cause, self.phase)

    def _attach(self) -> None:
        """Bind to the running event loop, on first use."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._watch(self._loop, self._child)

    def _watch(self, loop: asyncio.AbstractEventLoop, child: EngineChild) -> None:
        self._supervision.launched(loop.time())
        child.watch(loop, self._receive, self._on_exit)
        self._look_later(loop, child)

    def _look_later(self, loop: asyncio.AbstractEventLoop, child: EngineChild) -> None:
        seconds = self._supervision.look_seconds
        if seconds:
            self._looks = loop.call_later(seconds, self._look, loop, child)

    def _look(self, loop: asyncio.AbstractEventLoop, child: EngineChild) -> None:
        if child is not self._child or self._stopping:
            return
        # We may be the ones who were stopped: then its words wait here.
        self._receive(child)
        known = self._supervision.stall
        stall = self._supervision.look(loop.time())
        if stall is not None and stall.over:
            self._kill(f"{stall.words} and was killed.")
            return
        if stall is not None and known is None:
            log.warning("%s; it is killed if that goes on.", stall.words)
        self._look_later(loop, child)

    def _kill(self, why: str) -> None:
        self._last_words = why
        self._child.kill()

    def _receive(self, child: EngineChild) -> None:
        if child is not self._child or self._exited.is_set():
            return
        assert self._loop is not None
        for _ in range(_BATCH):
            if not child.end.pending():
                return
            self._supervision.heard(self._loop.time())
            self._handle(child.end.receive())
        self._loop.call_soon(self._receive, child)

    def _handle(self, message: EngineMessage) -> None:
        assert self._loop is not None
        if isinstance(message, EngineHeartbeat):
            self._supervision.beat(message)
        elif isinstance(message, EngineProgress):
            self.phase = message.phase
            if self._progress is not None:
                self._progress(message)
        elif isinstance(message, EngineReady):
            self.ready, self.state, self.cause = message, "ready", None
            self._supervision.serves(self._loop.time())
            self._settled.set()
            self._on_ready()
        elif isinstance(message, EngineDied):
            self._last_words, self.out_of_memory = message.cause, message.out_of_memory

    def _on_exit(self, child: EngineChild) -> None:
        if child is self._child:
            if self._looks is not None:
                self._looks.cancel()
            self._ending = asyncio.ensure_future(self._reap(child))

    async def _reap(self, child: EngineChild) -> None:
        """The process is gone: hear its last words, and start another one or leave it at that."""
        assert self._loop is not None
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        while child.end.pending():
            self._handle(child.end.receive())
        self._said_why = self._last_words is not None
        cause = self._last_words or child.exit_cause()
        self._last_words = None
        child.unwatch(self._loop)
        served = self.state == "ready"
        # A clean exit is a stop that somebody asked for with SIGTERM.
        if self._stopping or (served and child.returncode == 0):
            self._finish("stopped", _STOPPED)
        elif served or self.restarts:
            self._fail(self._loop, cause)
        else:
            self._finish("dead", cause)

    def _fail(self, loop: asyncio.AbstractEventLoop, cause: str) -> None:
        """It served once, and now it has no process."""
        delay = self._supervision.died(loop.time())
        if delay is None:
            failures = self._supervision.failures
            log.error("The engine is given up after %d deaths in a row: %s", failures, cause)
            self._finish("dead", cause)
            return
        when = f" in {format_seconds(delay)}" if delay else ""
        log.error("The engine died and is restarted%s: %s", when, cause)
        self.state, self.cause, self.phase = "starting", cause, "launch"
        self.down_since = time.monotonic()
        self._settled.clear()
        self._on_death(cause)
        if delay:
            self._restart = loop.call_later(delay, self._start_again)
        else:
            self._start_again()

    def _start_again(self) -> None:
        assert self._loop is not None
        self._restart = None
        if self._stopping:
            self._finish("stopped", _STOPPED)
            return
        self.restarts += 1
        try:
            child = self._spawn(self.config, self._options)
        except OSError as error:
            self._fail(self._loop, f"The engine's process could not be started: {error}.")
            return
        self._on_move(child.folder)
        # Only now: what its requests need lay in its folder.
        self._child.close()
        self._child = child
        self._watch(self._loop, child)

    def _finish(self, state: Literal["dead", "stopped"], cause: str) -> None:
        self.state = state
        if state == "dead":
            self.cause, self.died_at = cause, time.monotonic()
        self._on_end(cause)
        # Only now: what its requests need lay in its folder.
        self._child.close()
        self._exited.set()
        self._settled.set()


def not_ready(state: State, stopping: bool, cause: str | None, phase: str) -> EngineDeadError:
    """Why an engine takes no requests."""
    if stopping or state == "stopped":
        return EngineDeadError("The engine is shutting down.")
    if state == "dead":
        return EngineDeadError(cause or "The engine is dead.")
    reason = f" after it died: {cause}" if cause else "."
    return EngineDeadError(f"The engine is starting (phase: {phase}){reason}")
