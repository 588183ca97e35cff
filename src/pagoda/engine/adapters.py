"""The adapters that an engine has resident, and which of its slots they take."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pagoda.base.errors import ConfigError, RequestError
from pagoda.base.log import get_logger
from pagoda.core.messages import AddRequest, LoadedAdapter
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import open_adapter

log = get_logger(__name__)

Parts = Sequence[tuple[str, float]]
LoadSlot = Callable[[int, str, Parts], None]
"""A slot, the digest of what it is to hold, and the paths and scales of its parts."""


class EngineAdapters:
    """Single adapters stay until they are unloaded. Sums of several, which requests ask for, take
    slots that are free, and go when one is needed and no request has them."""

    def __init__(self, room: ResolvedAdapters, load: LoadSlot, used: Callable[[], set[str]]):
        """`used`: the adapters of all requests that are inside."""
        self._load = load
        self._used = used
        self._max_rank = room.max_rank
        self._slots: list[str | None] = [None] * room.slots
        self._loaded: dict[str, LoadedAdapter] = {}
        self._kept: set[str] = set()
        """Single ones that were not unloaded."""
        self._asked: dict[str, None] = {}
        """Sums, by when they were last asked for."""

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    def load(self, path: str, identity: str | None = None) -> LoadedAdapter:
        """Make an adapter resident, under the digest that it is known by afterwards; one that is
        stays. CheckpointError for what cannot be served; ConfigError where all slots are taken, or
        it is no longer what had `identity`."""
        if not self._slots:
            raise ConfigError("There is no room for adapters; start the server with --enable-lora.")
        files = open_adapter(Path(path))
        found = files.identity()
        if identity is not None and found != identity:
            raise ConfigError(f"The adapter {path} has changed since it was loaded; load it again.")
        if found not in self._slots:
            self._fill(found, [(path, 1.0)])
        self._kept.add(found)
        loaded = self._loaded[found] = LoadedAdapter(path, found, files.rank)
        log.info("The adapter %s is loaded (rank %d).", path, files.rank)
        return loaded

    def unload(self, identity: str) -> None:
        """Give an adapter's slot back; requests that run with it finish first, and no other one
        gets it."""
        if identity not in self._kept:
            raise RequestError("The adapter is not loaded.")
        self._kept.remove(identity)

    def admit(self, request: AddRequest) -> None:
        """Have what a request asks for resident; RequestError where that cannot be."""
        identity = request.adapter
        if identity is None or identity in self._kept:
            return
        parts = request.adapter_parts
        missing = [part for part, _ in parts if part not in self._kept]
        if missing or not parts:
            raise RequestError("The adapter of this request is not loaded; load it again.", "model")
        if identity not in self._slots:
            try:
                self._fill(identity, [(self._loaded[part].path, scale) for part, scale in parts])
            except ConfigError as error:
                raise RequestError(str(error), "lora") from error
        self._asked.pop(identity, None)
        self._asked[identity] = None

    def _fill(self, identity: str, parts: Parts) -> None:
        slot = self._free_slot()
        self._slots[slot] = None
        self._load(slot, identity, parts)
        self._slots[slot] = identity

    def _free_slot(self) -> int:
        if None in self._slots:
            return self._slots.index(None)
        used = self._used() | self._kept
        idle = [name for name in self._slots if name is not None and name not in used]
        if not idle:
            raise ConfigError(
                f"All {len(self._slots)} adapters of --max-loras are in use: unload one, or start "
                "the server with a larger --max-loras."
            )
        # Unloaded ones first, then the sum that was asked for longest ago.
        order = list(self._asked)
        gone = min(idle, key=lambda name: order.index(name) if name in self._asked else -1)
        self._asked.pop(gone, None)
        return self._slots.index(gone)
