"""Several models behind one port: loaded when one is asked for, unloaded when others need the room.

Room is counted in bytes: an engine plans itself into what the others leave, and where that does not
do, the model that nobody used for longest goes.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from pagoda.base.errors import (
    CapacityError,
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    ModelNotFoundError,
    PagodaError,
)
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.core.messages import EngineProgress
from pagoda.engine.aside.direct import Aside
from pagoda.engine.aside.workers import start_workers
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.replicas.launch import Engine, launch
from pagoda.engine.served.model import ServedModel, both_sides, served_model
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.engine.served.text_side import TextSide, fetch_model, load_text_side

log = get_logger(__name__)

# A model squeezed into less context than this is not what anyone asked for while others could go.
_LEAST_CONTEXT = 4096
# How long a request waits for a model in use to become idle, where only that makes room.
_ROOM_SECONDS = 60.0
_ROOM_LOOKS = 0.05
_IDLE_LOOKS = 1.0
# A model that could not be loaded is not tried again for each request that names it.
_RETRY_SECONDS = 10.0
_MAX_EVENTS = 256
# A fetch reports every piece of every file.
_TELL_SECONDS = 0.1

Launcher = Callable[[EngineConfig, MemoryRoom | None], Engine]
Event = dict[str, Any]


@dataclass(frozen=True)
class FleetLimits:
    memory_bytes: int | None = None
    """What all engines together may be planned to take; None: what the machine has."""
    idle_seconds: float = 0.0
    """Unload what nobody used for so long; 0 or less never."""


def launch_engine(config: EngineConfig, room: MemoryRoom | None) -> Engine:
    return launch(config, room=room)


async def _shut_down(model: ServedModel, drain_seconds: float) -> None:
    try:
        await model.client.shutdown(drain_seconds)
    finally:
        await model.aside.close()


class Fleet:
    """The models that can be asked for. Belongs to one event loop."""

    def __init__(
        self,
        entries: Iterable[ModelEntry] = (),
        *,
        limits: FleetLimits = FleetLimits(),
        launcher: Launcher = launch_engine,
    ):
        """Raises ConfigError for a name that two models have."""
        self.entries: list[ModelEntry] = []
        self._by_name: dict[str, ModelEntry] = {}
        self._listeners: set[asyncio.Queue[Event]] = set()
        for entry in entries:
            self.add(entry)
        self._limits = limits
        self._launch = launcher
        self._loads: dict[ModelEntry, asyncio.Task[ServedModel]] = {}
        # One load at a time: each plans with the memory that is left.
        self._turn = asyncio.Lock()
        self._ends = False

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> "Fleet":
        """Models that are loaded already."""
        return cls(ModelEntry(served.names, EngineConfig(), served=served) for served in models)

    def add(self, entry: ModelEntry) -> None:
        """Another model that can be asked for. Raises ConfigError for a name that one has."""
        for name in entry.names:
            if name in self._by_name:
                raise ConfigError(
                    f"Two models have the name {name!r}; NAME=MODEL gives one another."
                )
        self.entries.append(entry)
        self._by_name |= dict.fromkeys(entry.names, entry)
        self._tell(entry)

    def drop(self, entry: ModelEntry) -> None:
        """Have a model asked for no more. It is not loaded, nor being loaded."""
        self.entries.remove(entry)
        for name in entry.names:
            del self._by_name[name]
        self._tell_all({"model": entry.names[0], "status": "removed"})

    def find(self, name: str | None) -> ModelEntry:
        """The model of that name, or whose adapter has it; without a name, the first. Raises
        ModelNotFoundError."""
        if not name and self.entries:
            return self.entries[0]
        entry = self._by_name.get(name or "") or self._adapted(name)
        if entry is None:
            raise ModelNotFoundError(f"The model `{name}` does not exist.", "model")
        return entry

    def has(self, name: str | None) -> bool:
        """Whether a model has that name, or an adapter of one."""
        return name in self._by_name or self._adapted(name) is not None

    def _adapted(self, name: str | None) -> ModelEntry | None:
        """The model whose adapter has that name."""
        return next((entry for entry in self.entries if name in entry.adapters), None)

    def models(self) -> list[ServedModel]:
        """Those that are loaded."""
        return [entry.served for entry in self.entries if entry.served is not None]

    async def ready(self, entry: ModelEntry) -> ServedModel:
        """The model, loaded if need be; hold it with `entry.used()` meanwhile.

        Raises EngineAsleepError while it sleeps, CapacityError where no room can be made, and what
        loading raises.
        """
        while True:
            if entry.asleep:
                raise EngineAsleepError(entry.names[0])
            if entry.served is not None and not entry.is_over:
                return entry.served
            failure = _recent_failure(entry)
            if failure is not None:
                raise failure
            load = self.begin(entry)
            if await _outcome(load):
                return load.result()

    def adopt(self, client: Engine, text: TextSide, work: Aside | None) -> ServedModel:
        """Take the first model's engine, which was started elsewhere."""
        first = self.entries[0]
        first.served = served_model(first.config, client, text, work)
        self._tell(first)
        return first.served

    def begin(self, entry: ModelEntry) -> "asyncio.Task[ServedModel]":
        """Load a model in the background, unless that is under way. Raises EngineDeadError once
        the fleet shuts down."""
        load = self._loading(entry)
        if load is None:
            if self._ends:
                raise EngineDeadError("The server is shutting down.")
            load = self._loads[entry] = asyncio.create_task(self._load(entry))
            load.add_done_callback(lambda done: self._loaded(entry, done))
        return load

    async def unload(self, entry: ModelEntry, *, drain_seconds: float = 0.0) -> bool:
        """Free a model's memory, after its requests had their time; False if it was not loaded.
        Who asks for it meanwhile waits, and then it is loaded again."""
        load = self._loading(entry)
        if load is not None:
            load.cancel()
            with contextlib.suppress(asyncio.CancelledError, PagodaError):
                await load
        async with entry.turn:
            return await self._end(entry, drain_seconds) or load is not None

    async def unload_idle(self, entry: ModelEntry) -> None:
        """Free a model's memory, unless it is in use or pinned."""
        if self._can_go(entry):
            async with entry.turn:
                await self._end(entry)

    async def sleep(self, entry: ModelEntry, level: int, *, wait: bool = False) -> None:
        """Have a model take no requests and give memory back, until `wake`: that of its cache
        (level 1), or all of it (level 2). One that sleeps as deeply already stays as it is; one
        that is being loaded is loaded first.

        Its requests end first (`wait`), or at once. Raises EngineDeadError where the engine cannot
        be asked, and what loading raises; the model is then awake.
        """
        async with self._settled(entry):
            if entry.served is not None and not entry.asleep:
                await entry.served.client.sleep(wait=wait)
            entry.asleep = max(entry.asleep, level)
            if level > 1:
                await self._end(entry)
            log.info("%s sleeps (level %d).", entry.names[0], entry.asleep)
            self._tell(entry)

    async def wake(self, entry: ModelEntry) -> None:
        """Have a model serve again, loaded anew where its weights are gone; raises as `ready`.
        One that is awake stays so."""
        async with self._settled(entry):
            if entry.served is not None:
                await entry.served.client.wake_up()
            if not entry.asleep:
                return
            entry.asleep = 0
            self._tell(entry)
            # It takes its turn next: who wants to put the model to sleep waits for it.
            load = None if entry.served is not None else self.begin(entry)
        if load is not None and await _outcome(load):
            load.result()
        log.info("%s is awake.", entry.names[0])

    async def watch_idle(self) -> None:
        """Unload models that nobody used for long enough; runs until cancelled."""
        while self._limits.idle_seconds > 0:
            await asyncio.sleep(min(_IDLE_LOOKS, self._limits.idle_seconds / 4))
            for entry in self.entries:
                if self._can_go(entry) and entry.idle_seconds >= self._limits.idle_seconds:
                    log.info("%s was idle for %.0f s.", entry.names[0], entry.idle_seconds)
                    await self.unload_idle(entry)

    def listen(self) -> "asyncio.Queue[Event]":
        """A queue that hears of every change of state from now on, until `forget`."""
        queue: asyncio.Queue[Event] = asyncio.Queue(_MAX_EVENTS)
        self._listeners.add(queue)
        return queue

    def forget(self, queue: "asyncio.Queue[Event]") -> None:
        self._listeners.discard(queue)

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """End all engines, at the same time; none is started any more."""
        self._ends = True
        for load in list(self._loads.values()):
            load.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        # Without their turns: one may wait for requests that end only now.
        held = [entry.held for entry in self.entries if entry.held is not None]
        ends = [_shut_down(model, drain_seconds) for model in held]
        await asyncio.gather(*ends, return_exceptions=True)

    def _loading(self, entry: ModelEntry) -> "asyncio.Task[ServedModel] | None":
        load = self._loads.get(entry)
        return None if load is None or load.done() else load

    def _loaded(self, entry: ModelEntry, load: "asyncio.Task[ServedModel]") -> None:
        if self._loads.get(entry) is load:
            del self._loads[entry]
        if not load.cancelled():
            load.exception()  # it was logged, and nobody may be waiting for it

    @contextlib.asynccontextmanager
    async def _settled(self, entry: ModelEntry) -> AsyncIterator[None]:
        """The entry's turn, behind a load that is under way; raises what that raises."""
        while True:
            load = self._loading(entry)
            if load is not None and await _outcome(load):
                load.result()
            async with entry.turn:
                if self._loading(entry) is None:
                    if entry.is_over:
                        await self._end(entry)
                    yield
                    return

    async def _end(self, entry: ModelEntry, drain_seconds: float = 0.0) -> bool:
        """End the entry's engine, in the entry's turn; False where it has none."""
        served, entry.served, entry.failure = entry.served, None, None
        if served is None:
            return False
        entry.leaving = served
        self._tell(entry)
        log.info("Unloading %s.", entry.names[0])
        try:
            await _shut_down(served, drain_seconds)
        except asyncio.CancelledError:
            served.client.kill()  # Nobody would know of it any more.
            raise
        finally:
            entry.leaving = None
            self._tell(entry)
        return True

    async def _load(self, entry: ModelEntry) -> ServedModel:
        entry.loading, entry.failure, entry.progress = True, None, None
        entry.load_began = time.monotonic()
        self._tell(entry)
        try:
            async with entry.turn:
                if entry.served is not None and not entry.is_over:
                    return entry.served
                await self._end(entry)
                async with self._turn:
                    log.info("Loading %s.", entry.names[0])
                    local = await self._fetch(entry)
                    config = replace(entry.config, model=local)
                    entry.served = await self._start_with_room(entry, config)
                    return entry.served
        except PagodaError as error:
            entry.failure, entry.retry_at = error, time.monotonic() + _RETRY_SECONDS
            log.error("%s could not be loaded: %s", entry.names[0], error)
            raise
        finally:
            entry.loading = False
            self._tell(entry)

    async def _fetch(self, entry: ModelEntry) -> ModelConfig:
        """The model on this machine, fetched if need be; a load that is given up ends that at its
        next report."""
        loop, given_up, told = asyncio.get_running_loop(), threading.Event(), 0.0

        def progress(_name: str, done: int, total: int) -> None:
            nonlocal told
            if given_up.is_set():
                raise PagodaError("Nobody waits for the model any more.")
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                step = EngineProgress("fetch model", done, total)
                loop.call_soon_threadsafe(self._advance, entry, step)

        try:
            return await asyncio.to_thread(fetch_model, entry.config.model, progress)
        finally:
            given_up.set()

    def _advance(self, entry: ModelEntry, step: EngineProgress) -> None:
        if entry.loading:
            entry.progress = step
            self._tell(entry)

    async def _start_with_room(self, entry: ModelEntry, config: EngineConfig) -> ServedModel:
        while True:
            alone = self._least_used() is None
            held = {other: other.held for other in self.entries if other.held is not None}
            client = self._launch(config, self._room(keep_context=alone))
            try:
                return await self._start(entry, config, client)
            except EngineDeadError as error:
                if not client.out_of_memory:
                    raise
                # Not of who was idle before: that was seconds ago.
                if not await self._make_room(entry, held):
                    raise CapacityError(self._no_room(entry, str(error))) from error

    async def _start(self, entry: ModelEntry, config: EngineConfig, client: Engine) -> ServedModel:
        work = start_workers(config.model)
        try:
            loading = asyncio.to_thread(load_text_side, config.model)
            text = await both_sides(loading, client, progress=partial(self._advance, entry))
        except BaseException:
            client.kill()  # At once: this wait may be cancelled too.
            if work is not None:
                await work.close()
            await client.shutdown()
            raise
        # Under the name it was asked for, not that of its local files.
        return replace(served_model(entry.config, client, text, work), names=entry.names)

    def _room(self, *, keep_context: bool) -> MemoryRoom:
        loaded = [entry for entry in self.entries if entry.held is not None]
        limit = self._limits.memory_bytes
        if limit is not None:
            limit = max(0, limit - sum(entry.planned_bytes for entry in loaded))
        return MemoryRoom(
            reserved=sum(entry.untouched_bytes for entry in loaded),
            limit=limit,
            least_context=0 if keep_context else _LEAST_CONTEXT,
        )

    def _can_go(self, entry: ModelEntry) -> bool:
        """Whether its engine can be ended now; its turn is then free to be taken at once."""
        idle = entry.served is not None and not entry.in_use and not entry.turn.locked()
        return idle and not entry.pinned

    def _least_used(self) -> ModelEntry | None:
        idle = [entry for entry in self.entries if self._can_go(entry)]
        return min(idle, key=lambda entry: entry.last_used, default=None)

    async def _make_room(self, entry: ModelEntry, held: dict[ModelEntry, ServedModel]) -> bool:
        """Have one of those go that `held` memory, or that comes to rest in time, unless one has
        gone; False where none does."""
        can_go = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROOM_SECONDS):
                while can_go is None:
                    if any(other.held is not model for other, model in held.items()):
                        return True
                    # Not for its turn: that may be taken by its next load, which waits for ours.
                    leaves = any(other.leaving is not None for other in self.entries)
                    can_go = None if leaves else self._least_used()
                    if can_go is None:
                        if not leaves and not any(e.served and not e.pinned for e in self.entries):
                            return False
                        await asyncio.sleep(_ROOM_LOOKS)
        if can_go is None:
            return False
        log.info("%s makes room for %s.", can_go.names[0], entry.names[0])
        async with can_go.turn:
            await self._end(can_go)
        return True

    def _no_room(self, entry: ModelEntry, reason: str) -> str:
        loaded = [e for e in self.entries if e.held is not None]
        held = ", ".join(
            f"{e.names[0]} {format_bytes(e.planned_bytes)}{' (pinned)' if e.pinned else ''}"
            for e in loaded
        )
        return f"There is no room for {entry.names[0]}: {reason} Loaded: {held or 'nothing'}."

    def _tell(self, entry: ModelEntry) -> None:
        self._tell_all(describe(entry))

    def _tell_all(self, event: Event) -> None:
        for queue in self._listeners:
            # A listener that does not read loses the oldest, not the newest.
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)


def _recent_failure(entry: ModelEntry) -> PagodaError | None:
    """Why it could not be loaded, or its engine was given up, moments ago."""
    failure, retry_at = entry.failure, entry.retry_at
    if entry.served is not None and entry.served.client.died_at is not None:
        failure = EngineDeadError(entry.cause or "The engine is dead.")
        retry_at = entry.served.client.died_at + _RETRY_SECONDS
    return failure if time.monotonic() < retry_at else None


async def _outcome(load: "asyncio.Task[ServedModel]") -> bool:
    """Wait for a load, which goes on when its waiter leaves; False where it was given up, which is
    no cancelling of those who wait."""
    await asyncio.wait((load,))
    return not load.cancelled()


def describe(entry: ModelEntry) -> Event:
    """An entry's state for clients."""
    event: Event = {
        "model": entry.names[0],
        "names": list(entry.names),
        "status": entry.state,
        "pinned": entry.pinned,
    }
    if entry.loading:
        event["seconds"] = round(time.monotonic() - entry.load_began, 1)
    if entry.progress is not None and entry.loading:
        event["progress"] = msgspec.to_builtins(entry.progress)
        event["progress"].pop("type", None)
    if entry.served is not None:
        event["bytes"] = entry.held_bytes
    if entry.state == "failed":
        event["error"] = entry.cause
    return event
