"""The engine as its callers see it: torch-free, asynchronous, in a process of its own.

starting --> ready --> dead --> starting (once) ...
    \\----------> dead              any --> stopped (shutdown)
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import zmq

from pagoda.base.errors import (
    EngineAsleepError,
    EngineDeadError,
    EngineKilledError,
    RequestError,
)
from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    EngineDied,
    EngineMessage,
    EngineProgress,
    EngineReady,
    EngineStats,
    RequestDelta,
    Shutdown,
    StepOutputs,
    Utility,
    UtilityResult,
)
from pagoda.engine.child import EngineChild, LaunchOptions
from pagoda.engine.inbox import Inbox
from pagoda.engine.media import MediaFiles
from pagoda.engine.progress import StartupDisplay
from pagoda.engine.queue_limit import QueueLimit
from pagoda.engine.transport import MemoryRoom
from pagoda.text.images.base import Pixels

log = get_logger(__name__)

# A second death within so many seconds is no accident: stay dead and say why.
_RESTART_WINDOW = 600.0
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
# While requests may finish before the engine sleeps; and a GPU's weights on their way, 100 GB at
# the 2 GB/s of memory that is not pinned.
_DRAIN_LOOKS = 0.02
_SLEEP_SECONDS = 60.0
_NO_PIXELS: Mapping[str, Pixels] = {}

State = Literal["starting", "ready", "dead", "stopped"]
Progress = Callable[[EngineProgress], None]


class EngineClient:
    """Launch it anywhere; everything else belongs to one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        options: LaunchOptions,
        spawn: Callable[[EngineConfig, LaunchOptions], EngineChild] = EngineChild,
    ):
        """`spawn` starts the process, and does so again when it died."""
        self.config = config
        self.state: State = "starting"
        self.cause: str | None = None
        """Why the engine is not ready, once it has died; None while all is well."""
        self.ready: EngineReady | None = None
        """What the engine said when it was last ready; `state` tells whether it is."""
        self.stats = EngineStats()
        self.phase = "launch"
        self.restarts = 0
        self.queue = QueueLimit(config.scheduler)
        self.asleep = False
        """It takes no requests until `wake_up`."""
        self.out_of_memory = False
        """It died because its model does not fit."""
        self._said_why = True
        self._options = options
        self._spawn = spawn
        self._child = spawn(config, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settled = asyncio.Event()
        self._exited = asyncio.Event()
        self._inboxes: dict[str, Inbox] = {}
        """Of the requests that run, by their ids."""
        self._media = MediaFiles()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._progress: Progress | None = None
        self._last_words: str | None = None
        self._last_death: float | None = None
        self._stopping = False
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    def launch(
        cls,
        config: EngineConfig,
        *,
        log_level: str = "info",
        log_format: str = "text",
        startup_timeout: float = 0.0,
        room: MemoryRoom | None = None,
    ) -> "EngineClient":
        """Start the process and return at once. Needs no running event loop."""
        return cls(config, LaunchOptions(log_level, log_format, startup_timeout, room))

    @property
    def num_running(self) -> int:
        """Requests inside."""
        return len(self._inboxes)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait_ready(
        self, timeout: float | None = None, progress: Progress | None = None
    ) -> EngineReady:
        """Wait until the engine serves. `progress` hears of each phase and of bytes loaded;
        by default they show on stderr.

        Raises EngineDeadError with the cause if it dies first, or after `timeout` seconds, and
        EngineKilledError where only its exit status tells.
        """
        self._attach()
        if timeout is not None and self._options.startup_timeout:
            timeout += _REPORT_SECONDS
        display = StartupDisplay()
        self._progress = progress or display.update
        try:
            await asyncio.wait_for(self._settled.wait(), timeout)
        except TimeoutError:
            self._last_words = (
                f"The engine was not ready after {format_seconds(timeout or 0)} "
                f"(phase: {self.phase})."
            )
            self._child.kill()
            await self._settled.wait()
        finally:
            self._progress = None
            display.close()
        if self.state != "ready" or self.ready is None:
            kind = EngineDeadError if self._said_why else EngineKilledError
            raise kind(self.cause or "The engine was stopped.")
        return self.ready

    def submit(
        self, requests: Sequence[AddRequest], pixels: Mapping[str, Pixels] = _NO_PIXELS
    ) -> Inbox:
        """Send requests. What each step adds to them arrives in the inbox; the last delta of each
        has a finish_reason. Who leaves earlier calls `drop`. `pixels` are those of their pictures,
        by content hash.

        Use an id once only: what a dropped request still sends would be taken for the next one's.
        Raises EngineDeadError when the engine is not ready or sleeps, QueueFullError when too many
        wait, RequestError for an id that is already running, and sends nothing then. Whatever else
        fails (OSError where a picture cannot be written) ends all of these requests and no other.
        """
        ready = self._require_ready()
        if self.asleep:
            raise EngineAsleepError
        for request in requests:
            if request.req_id in self._inboxes:
                raise RequestError(f"A request with the id {request.req_id!r} is already running.")
        if self.queue.active:
            self.queue.admit(requests, len(self._inboxes), self.stats, ready)
        inbox = Inbox()
        sent: list[str] = []
        try:
            for request in requests:
                self._media.hold(request, self._child.folder, pixels)
            for request in requests:
                self._inboxes[request.req_id] = inbox
                self._child.end.send(request)
                sent.append(request.req_id)
        except BaseException:
            for request in requests:
                self._forget(request.req_id)
            if sent:
                # Where even that fails, nobody listens to what the engine says of them.
                with contextlib.suppress(OSError, zmq.ZMQError):
                    self._child.end.send(AbortRequests(sent))
            raise
        return inbox

    def drop(self, req_ids: Iterable[str]) -> None:
        """Hear no more of requests, and stop those that still run."""
        running = [req_id for req_id in req_ids if req_id in self._inboxes]
        for req_id in running:
            self._forget(req_id)
        if running:
            self._child.end.send(AbortRequests(running))

    async def generate(self, req: AddRequest) -> AsyncGenerator[RequestDelta, None]:
        """Send `req` and yield what was added to it since the last look, one step's work or
        several; the last delta has a finish_reason. Closing the iterator early aborts the request.

        Raises as `submit`, and EngineDeadError when the engine ends on the way.
        """
        inbox = self.submit([req])
        try:
            running = True
            while running:
                await inbox.arrival()
                for delta in inbox.take():
                    running = delta.finish_reason is None
                    yield delta
        finally:
            self.drop([req.req_id])

    async def call(self, method: str, *args: Any, timeout: float = 10.0) -> Any:
        """Call a utility of the engine (`reset_prefix_cache`, `stats`, `check_integrity`).

        Raises RequestError with the engine's words if it fails, EngineDeadError if the engine
        is not ready, ends on the way, or does not answer within `timeout` seconds.
        """
        self._require_ready()
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._child.end.send(Utility(call_id, method, list(args)))
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise EngineDeadError(
                f"The engine did not answer {method} within {format_seconds(timeout)}."
            ) from None
        finally:
            self._calls.pop(call_id, None)

    async def sleep(self, *, wait: bool = False) -> None:
        """Take no more requests, and have the engine give back the memory of its caches.

        Requests that run end first (`wait`), or at once with EngineAsleepError's words. Where this
        fails (raises as `call`) the engine is awake.
        """
        self._require_ready()
        self.asleep = True
        try:
            while wait and self._inboxes:
                await asyncio.sleep(_DRAIN_LOOKS)
            self._end_requests(str(EngineAsleepError()))
            await self.call("sleep", timeout=_SLEEP_SECONDS)
        except BaseException:
            self.asleep = False
            raise

    async def wake_up(self) -> None:
        """Take requests again; raises as `call`. An engine that is awake stays so."""
        await self.call("wake_up", timeout=_SLEEP_SECONDS)
        self.asleep = False

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """End the process: running requests get `drain_seconds`; nothing is left behind."""
        self._attach()
        self._stopping = True
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

    def _forget(self, req_id: str) -> None:
        self._inboxes.pop(req_id, None)
        self.queue.forget(req_id)
        self._media.release(req_id)

    def _require_ready(self) -> EngineReady:
        self._attach()
        if self.state == "ready" and not self._stopping and self.ready is not None:
            return self.ready
        if self._stopping or self.state == "stopped":
            raise EngineDeadError("The engine is shutting down.")
        if self.state == "dead":
            raise EngineDeadError(self.cause or "The engine is dead.")
        reason = f" after it died: {self.cause}" if self.cause else f" (phase: {self.phase})."
        raise EngineDeadError(f"The engine is starting{reason}")

    def _attach(self) -> None:
        """Bind to the running event loop, on first use."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._watch(self._child)

    def _watch(self, child: EngineChild) -> None:
        assert self._loop is not None
        child.watch(self._loop, self._receive, self._on_exit)

    def _receive(self, child: EngineChild) -> None:
        if child is not self._child or self._exited.is_set():
            return
        assert self._loop is not None
        for _ in range(_BATCH):
            if not child.end.pending():
                return
            self._handle(child.end.receive())
        self._loop.call_soon(self._receive, child)

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, StepOutputs):
            self.stats = message.stats
            for delta in message.deltas:
                if self.queue.active:
                    self.queue.forget(delta.req_id)
                inbox = self._inboxes.get(delta.req_id)
                if inbox is not None:
                    inbox.put(delta)
                    if delta.finish_reason is not None:
                        del self._inboxes[delta.req_id]
                        self._media.release(delta.req_id)
        elif isinstance(message, UtilityResult):
            self._resolve(message)
        elif isinstance(message, EngineProgress):
            self.phase = message.phase
            if self._progress is not None:
                self._progress(message)
        elif isinstance(message, EngineReady):
            self.ready, self.state, self.cause = message, "ready", None
            self._settled.set()
        elif isinstance(message, EngineDied):
            self._last_words, self.out_of_memory = message.cause, message.out_of_memory

    def _resolve(self, message: UtilityResult) -> None:
        future = self._calls.pop(message.call_id, None)
        if future is None or future.done():
            return
        if message.error is not None:
            future.set_exception(RequestError(message.error))
        else:
            future.set_result(message.result)

    def _on_exit(self, child: EngineChild) -> None:
        if child is self._child:
            self._ending = asyncio.ensure_future(self._bury(child))

    async def _bury(self, child: EngineChild) -> None:
        """The process is gone: hear its last words, end every stream, start anew or stay dead."""
        assert self._loop is not None
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        while child.end.pending():
            self._handle(child.end.receive())
        self._said_why = self._last_words is not None
        cause = self._last_words or child.exit_cause()
        self._last_words = None
        served = self.state == "ready"
        # A clean exit is a stop that somebody asked for with SIGTERM.
        asked = self._stopping or (served and child.returncode == 0)
        restart = served and not asked and not self._died_lately()
        child.unwatch(self._loop)
        child.close()
        if asked:
            self.state, cause = "stopped", "The engine was stopped."
        self._end_streams(cause)
        if restart:
            self._restart(cause)
        elif not asked:
            self.state, self.cause = "dead", cause
            if served or self.restarts:  # else `wait_ready` raises it
                log.error("The engine is dead: %s", cause)
        if self.state != "starting":
            self._exited.set()
            self._settled.set()

    def _died_lately(self) -> bool:
        last = self._last_death
        return last is not None and time.monotonic() - last < _RESTART_WINDOW

    def _restart(self, cause: str) -> None:
        log.error("The engine died and is restarted: %s", cause)
        self._last_death = time.monotonic()
        self.state, self.cause, self.phase = "starting", cause, "launch"
        self.stats = EngineStats()
        self.restarts += 1
        self._settled.clear()
        try:
            self._child = self._spawn(self.config, self._options)
        except OSError as error:
            self.state, self.cause = "dead", f"{cause} It could not be restarted: {error}."
        else:
            self._watch(self._child)

    def _end_requests(self, cause: str) -> None:
        for req_id, inbox in self._inboxes.items():
            inbox.end(cause)
            self._media.release(req_id)
            self.queue.forget(req_id)
        self._inboxes.clear()

    def _end_streams(self, cause: str) -> None:
        self._end_requests(cause)
        self._media.clear()
        self.queue.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDeadError(cause))
        self._calls.clear()
