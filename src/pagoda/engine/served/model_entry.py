"""A model under its names: whether it is loaded, who uses it, and since when nobody does."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from pagoda.base.errors import PagodaError
from pagoda.base.machine import tree_bytes
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import EngineProgress
from pagoda.engine.served.model import ServedModel

State = Literal["unloaded", "loading", "loaded", "sleeping", "failed"]


@dataclass(eq=False)
class ModelEntry:
    names: tuple[str, ...]
    """The first is the one reported."""
    config: EngineConfig
    pinned: bool = False
    """Never unloaded to make room, nor for being idle."""
    served: ServedModel | None = None
    """While it is loaded; also while its engine is restarted, and after that was given up."""
    leaving: ServedModel | None = None
    """It was loaded, and its engine is being ended."""
    failure: PagodaError | None = None
    """Why it could not be loaded, when that was last tried."""
    retry_at: float = 0.0
    """time.monotonic() before which that is not tried again."""
    loading: bool = False
    progress: EngineProgress | None = None
    """Progress of the load under way."""
    load_began: float = 0.0
    """time.monotonic() of its beginning."""
    added: bool = False
    """Fetched while the server runs; no flag names it."""
    created: int = field(default_factory=lambda: int(time.time()))
    last_used: float = field(default_factory=time.monotonic)
    """time.monotonic() of the last request's end."""
    users: int = 0
    """Requests that hold it."""
    asleep: int = 0
    """The level of its sleep: 1 keeps the weights in memory, 2 nothing; 0: it is awake."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever changes its engine: loads it, ends it, puts it to sleep or wakes it up."""

    @property
    def held(self) -> ServedModel | None:
        """Whose engine takes memory."""
        return self.leaving if self.is_over else self.served or self.leaving

    @property
    def is_over(self) -> bool:
        """Its engine was ended from outside or given up, and takes no requests any more."""
        return self.served is not None and self.served.client.state in ("stopped", "dead")

    @property
    def adapters(self) -> dict[str, str]:
        """Adapters that requests may name in its place, and where they come from."""
        if self.served is not None and self.served.client.ready is not None:
            named = self.served.client.adapters.named
            return {name: adapter.path for name, adapter in named.items()}
        return {adapter.name: adapter.path for adapter in self.config.adapters.named}

    @property
    def state(self) -> State:
        if self.served is not None:
            awake: State = "sleeping" if self.asleep else "loaded"
            of_client: dict[str, State] = {"ready": awake, "starting": "loading"}
            return of_client.get(self.served.client.state, "failed")
        if self.loading:
            return "loading"
        if self.asleep:
            return "sleeping"
        return "unloaded" if self.failure is None else "failed"

    @property
    def cause(self) -> str | None:
        """Why it failed, where it did."""
        if self.served is not None:
            return self.served.client.cause
        return None if self.failure is None else str(self.failure)

    @property
    def idle_seconds(self) -> float:
        """0 while it is in use."""
        return 0.0 if self.in_use else time.monotonic() - self.last_used

    @property
    def in_use(self) -> bool:
        return self.users > 0 or (self.served is not None and self.served.client.num_running > 0)

    @contextmanager
    def used(self) -> Iterator[None]:
        """It stays loaded during the block."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.last_used = time.monotonic()

    @property
    def planned_bytes(self) -> int:
        """What its engine was planned to take, KV pool and all; 0 while it has none."""
        of_rank: int = sum(row["predicted"] for row in self._memory_rows())
        # Ranks and replicas on a CPU take it from the same memory.
        parallel = self.config.parallel
        return of_rank * (parallel.num_devices if self._on_cpu else 1)

    @property
    def held_bytes(self) -> int:
        """What its engine holds now: resident memory of its processes; on a GPU the memory of one
        device, as it was measured at the start. 0 while it has none."""
        if self.held is None:
            return 0
        if self._on_cpu:
            return sum(tree_bytes(engine.pid) for engine in self.held.client.engines)
        rows = self._memory_rows()
        return sum(row.get("measured") or row["predicted"] for row in rows)

    @property
    def _on_cpu(self) -> bool:
        ready = self.held.client.ready if self.held is not None else None
        return ready is not None and ready.device == "cpu"

    def _memory_rows(self) -> list[dict[str, Any]]:
        ready = self.held.client.ready if self.held is not None else None
        rows: list[dict[str, Any]] = ready.ledger if ready is not None else []
        return [row for row in rows if row["kind"] == "memory"]

    @property
    def untouched_bytes(self) -> int:
        """What the system still counts as free of those: a KV pool is touched when used."""
        if self.held is None:
            return 0
        touched = sum(tree_bytes(engine.pid) for engine in self.held.client.engines)
        return max(0, self.planned_bytes - touched)
