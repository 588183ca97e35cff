"""The engine as its callers see it: torch-free, asynchronous, in a process of its own."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from pagoda.base.errors import EngineAsleepError, EngineDeadError, RequestError
from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    StepOutputs,
    Utility,
    UtilityResult,
)
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.asking import NO_MEDIA, Asking
from pagoda.engine.processes.child import EngineChild, LaunchOptions
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.kept import KeptEngine, Progress, Spawn, State
from pagoda.engine.processes.running import RunningRequests
from pagoda.engine.processes.spawn import Spawner, spawn
from pagoda.engine.processes.supervision import SupervisionLimits
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.text.media.base import Values

log = get_logger(__name__)

__all__ = ["EngineClient", "Progress", "State"]

# While requests may finish before the engine sleeps; and a GPU's weights on their way, 100 GB at
# the 2 GB/s of memory that is not pinned.
_DRAIN_LOOKS = 0.02
_SLEEP_SECONDS = 60.0
_DEFAULT = SupervisionLimits()


class EngineClient(KeptEngine, Asking):
    """Requests and calls to an engine that is kept running.

    When it dies, requests of which nothing was heard yet wait for the next process and run there,
    with the same results; the others end with its cause.
    """

    def __init__(self, config: EngineConfig, options: LaunchOptions, spawn: Spawn = EngineChild):
        super().__init__(config, options, spawn)
        self.stats = EngineStats()
        self.asleep = False
        """It takes no requests until `wake_up`."""
        self._engine_asleep = False
        """It was told so, and gave its memory back."""
        self.adapters = KnownAdapters(config.adapters)
        self._running = RunningRequests(config.scheduler)
        self.queue = self._running.queue
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)

    @classmethod
    def launch(
        cls,
        config: EngineConfig,
        *,
        log_level: str = "info",
        log_format: str = "text",
        startup_timeout: float = 0.0,
        room: MemoryRoom | None = None,
        supervision: SupervisionLimits = _DEFAULT,
        spawner: Spawner = spawn,
    ) -> Self:
        """Start the process and return at once. Needs no running event loop."""
        options = LaunchOptions(
            log_level,
            log_format,
            startup_timeout,
            room,
            spawner=spawner,
            supervision=supervision,
        )
        return cls(config, options)

    def busy_adapters(self) -> tuple[list[str], list[str]]:
        """Names of the adapters that requests run with, and of those that others wait for."""
        names: dict[str, str] = {}
        for name, adapter in self.adapters.named.items():
            names.setdefault(adapter.identity, name)
        for each in self.adapters.listed:
            if each.adapter is not None:
                names.setdefault(each.adapter.identity, each.path)
        running, waiting = (
            sorted({names[identity] for identity in found if identity in names})
            for found in self._running.adapters()
        )
        return running, waiting

    @property
    def num_running(self) -> int:
        """Requests inside."""
        return len(self._running)

    @property
    def engines(self) -> "list[EngineClient]":
        """It alone; several stand behind one that has replicas."""
        return [self]

    def submit(
        self,
        requests: Sequence[AddRequest],
        media: Mapping[str, Values] = NO_MEDIA,
        inbox: Inbox | None = None,
    ) -> Inbox:
        """As `Asking.submit`; `inbox` is one that others have, too."""
        ready = self._require_ready()
        if self.asleep:
            raise EngineAsleepError
        for request in requests:
            if request.req_id in self._running:
                raise RequestError(f"A request with the id {request.req_id!r} is already running.")
        if self.queue.active:
            self.queue.admit(requests, len(self._running), self.stats, ready)
        sent: list[str] = []
        try:
            inbox = self._running.add(requests, media, self._child.folder, inbox or Inbox())
            for request in requests:
                self._child.end.send(request)
                sent.append(request.req_id)
        except BaseException:
            for request in requests:
                self._running.forget(request.req_id)
            if sent:
                # Where even that fails, nobody listens to what the engine says of them.
                with contextlib.suppress(OSError, zmq.ZMQError):
                    self._child.end.send(AbortRequests(sent))
            raise
        return inbox

    def drop(self, req_ids: Iterable[str]) -> None:
        running = [req_id for req_id in req_ids if req_id in self._running]
        for req_id in running:
            self._running.forget(req_id)
        # Those that wait for the next process are not inside of any.
        if running and self.state == "ready":
            self._child.end.send(AbortRequests(running))

    async def call(self, method: str, *args: Any, timeout: float = 10.0) -> Any:
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
            while wait and len(self._running):
                await asyncio.sleep(_DRAIN_LOOKS)
            self._running.end(str(EngineAsleepError()))
            await self.call("sleep", timeout=_SLEEP_SECONDS)
            self._engine_asleep = True
        except BaseException:
            self.asleep = False
            raise

    async def wake_up(self) -> None:
        """Take requests again; raises as `call`. An engine that is awake stays so."""
        await self.call("wake_up", timeout=_SLEEP_SECONDS)
        self.asleep = self._engine_asleep = False

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, StepOutputs):
            self.stats = message.stats
            for delta in message.deltas:
                self._running.hear(delta)
        elif isinstance(message, UtilityResult):
            self._resolve(message)
        else:
            super()._handle(message)

    def _resolve(self, message: UtilityResult) -> None:
        future = self._calls.pop(message.call_id, None)
        if future is None or future.done():
            if message.error is not None:
                log.warning("%s", message.error)
            return
        if message.error is not None:
            future.set_exception(RequestError(message.error))
        else:
            future.set_result(message.result)

    def _on_ready(self) -> None:
        assert self.ready is not None  # it just said so
        for method, args in self.adapters.on_ready(self.ready):
            self._child.end.send(Utility(next(self._call_ids), method, args))
        for request in self._running.to_resend():
            self._child.end.send(request)
        if self._engine_asleep:
            # Others may have taken the memory that it gave back.
            self._child.end.send(Utility(next(self._call_ids), "sleep"))

    def _on_move(self, folder: Path) -> None:
        self._running.move(folder)

    def _on_death(self, cause: str) -> None:
        self.stats = EngineStats()
        self._running.end_begun(cause)
        self._end_calls(cause)

    def _on_end(self, cause: str) -> None:
        self._running.end(cause)
        self._end_calls(cause)

    def _end_calls(self, cause: str) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EngineDeadError(cause))
        self._calls.clear()
