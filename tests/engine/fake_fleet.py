"""A fleet whose engines compute nothing, and take only their sizes of memory."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import EngineProgress, EngineReady
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.served.entries import model_entries
from pagoda.engine.served.fleet import Fleet, FleetLimits

SIZES = {"small": 10, "big": 60, "huge": 1000, "other": 30}
MACHINE = 100
LIMIT = 90


class FakeEngine:
    """Takes its model's size of the room that it is given, or dies of its lack."""

    running: set[str] = set()
    most: int = 0
    alive: set[str] = set()
    """From their launch until they have ended."""
    launches: list[tuple[str, MemoryRoom]] = []

    def __init__(self, config: EngineConfig, room: MemoryRoom | None):
        assert room is not None
        self.name = config.model.model
        self.room = room
        self.state = "starting"
        self.cause: str | None = None
        self.died_at: float | None = None
        self.out_of_memory = False
        self.ready: EngineReady | None = None
        self.num_running = 0
        self.asleep = False
        self.adapters = KnownAdapters(config.adapters)
        self.pid = "self"
        self.engines = [self]
        assert self.name not in FakeEngine.alive, "a model has one engine"
        FakeEngine.alive.add(self.name)
        FakeEngine.launches.append((self.name, room))

    async def wait_ready(self, timeout: Any, progress: Any) -> EngineReady:
        progress(EngineProgress("load weights", 1, 2))
        await asyncio.sleep(0.01)
        size = SIZES[self.name]
        limit = LIMIT if self.room.limit is None else self.room.limit
        free = limit - (sum(SIZES[name] for name in FakeEngine.running) if limit == LIMIT else 0)
        if self.name == "broken":
            raise EngineDeadError("The file is broken.")
        if size > free:
            self.state, self.out_of_memory = "dead", True
            raise EngineDeadError(f"{size} bytes do not fit.")
        FakeEngine.running.add(self.name)
        FakeEngine.most = max(FakeEngine.most, sum(SIZES[name] for name in FakeEngine.running))
        ledger = [{"kind": "memory", "name": "weights", "predicted": size}]
        self.ready = EngineReady(
            max_model_len=64,
            vocab_size=8,
            num_blocks=4,
            block_size=4,
            kv_tokens=12,
            max_num_seqs=1,
            ledger=ledger,
        )
        self.state = "ready"
        return self.ready

    async def sleep(self, *, wait: bool) -> None:
        if self.state != "ready":
            raise EngineDeadError("The engine is starting.")
        assert not self.asleep, "it is told once"
        self.asleep = True
        while wait and self.num_running:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    async def wake_up(self) -> None:
        await asyncio.sleep(0.01)
        self.asleep = False

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        if self.state == "ready":
            await asyncio.sleep(0.01 + drain_seconds)
        self.kill()

    def kill(self) -> None:
        """Also from outside."""
        if self.state != "stopped":
            FakeEngine.running.discard(self.name)
            FakeEngine.alive.discard(self.name)
            self.state = "stopped"

    def give_up(self, cause: str) -> None:
        """As one whose process died too often."""
        self.kill()
        self.state, self.cause, self.died_at = "dead", cause, time.monotonic()


class FakeText:
    def __init__(self, model: str):
        self.model = model


def make(*names: str, pinned: tuple[str, ...] = (), **limits: Any) -> Fleet:
    base = EngineConfig()
    config = replace(base, model=replace(base.model, model=names[0]))
    entries = model_entries(config, names[1:], pinned, {})
    limits = {"memory_bytes": LIMIT, **limits}
    return Fleet(entries, limits=FleetLimits(**limits), launcher=FakeEngine)


async def use(fleet: Fleet, name: str, seconds: float = 0.0) -> Any:
    entry = fleet.find(name)
    with entry.used():
        served = await fleet.ready(entry)
        assert served.client.state == "ready", "no request reaches a model that is not there"
        await asyncio.sleep(seconds)
        assert served.client.state == "ready", "nor one that leaves while it is used"
    return served


def states(fleet: Fleet) -> list[str]:
    return [entry.state for entry in fleet.entries]
