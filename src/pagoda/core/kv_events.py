"""What enters and leaves the prefix cache, as events that let routers know what it holds.

Events have the fields of vLLM's and are encoded alike (vllm/distributed/kv_events.py): msgspec's
tagged structs, maps whose key `type` has the struct's name.
"""

import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import GroupSpec, StateGroupSpec
from pagoda.core.kvcache.watcher import HostWatcher, TierWatcher
from pagoda.core.request import Request

ExtraKeys = list[str | tuple[str, int]]
"""What tells a block apart besides its tokens: of each of its media the content's hash, and where
in the block it starts (below 0: before it); the salt, in the first block of a text."""


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other in a text."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """What the block before the first is called; None at the start of a text."""
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[ExtraKeys | None]
    """For each block, None where it has none."""
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int]
    medium: str
    group_idx: int


class AllBlocksCleared(msgspec.Struct, tag=True):
    """Nothing is cached any more, in any memory."""


Event = BlockStored | BlockRemoved | AllBlocksCleared

POOL, HOST = "GPU", "CPU"
"""vLLM's names of the memories, whatever device this is."""


class _Place(NamedTuple):
    medium: str
    group: int


_ON_ITS_WAY = _Place("", 0)
"""A block that is nowhere else is remembered all the same."""


class _Text(NamedTuple):
    """What a block holds."""

    parent: bytes
    """Hash of the block before it; empty where there is none."""
    tokens: "array[int]"
    lora_id: int | None
    lora_name: str | None
    extra_keys: ExtraKeys | None


class _Tier:
    """A memory's watcher."""

    def __init__(self, events: "KVEvents", medium: str, num_groups: int):
        self._events = events
        self._places = [_Place(medium, group) for group in range(num_groups)]

    def stored(self, group: int, block_hash: bytes) -> None:
        self._events.stored(self._places[group], block_hash)

    def removed(self, group: int, block_hash: bytes) -> None:
        self._events.removed(self._places[group], block_hash)

    def coming(self, group: int, block_hash: bytes) -> None:
        self._events.coming(block_hash)

    def came(self, group: int, block_hash: bytes) -> None:
        self._events.came(block_hash)


class KVEvents:
    """The events since they were last taken.

    A block is told of once it is both there and known by its text. It is remembered with its
    tokens for as long as it is in the pool or in the host's memory.
    """

    def __init__(self, cache: KVCacheManager, requests: Mapping[str, Request]):
        """Watches `cache` from now on. `requests`: by their ids, which own block tables."""
        self._requests = requests
        self._size = cache.block_size
        self._specs = [_spec_fields(group) for group in cache.groups]
        self._places: dict[bytes, list[_Place]] = {}
        self._texts: dict[bytes, _Text] = {}
        """What the blocks in `_places` hold, as far as it is known."""
        # What routers remember of an engine before this one is gone.
        self._is_cleared = True
        self._removed: dict[_Place, list[int]] = {}
        """Names of blocks that were told of."""
        groups = range(len(cache.groups))
        self._stored: dict[_Place, dict[bytes, _Text]] = {
            _Place(medium, group): {} for medium in (POOL, HOST) for group in groups
        }
        """Blocks that are there and were not told of yet."""
        self.pool: TierWatcher = _Tier(self, POOL, len(groups))
        self.host: HostWatcher = _Tier(self, HOST, len(groups))
        cache.watch(self)

    def take(self) -> list[Event]:
        """What changed, told once: what went, then what came, each block behind the one before it
        in its text, for routers find it by that."""
        events: list[Event] = [AllBlocksCleared()] if self._is_cleared else []
        events += [BlockRemoved(names, *place) for place, names in self._removed.items()]
        for place, stored in self._stored.items():
            if stored:
                events += self._in_order(place, stored)
        self._is_cleared = False
        self._removed.clear()
        return events

    def name(self, owner: str, hashes: Sequence[bytes], index: int) -> None:
        block_hash = hashes[index]
        req = self._requests.get(owner)
        if block_hash in self._texts or block_hash not in self._places or req is None:
            return
        text = self._texts[block_hash] = self._text(req, hashes, index)
        for place in self._places[block_hash]:
            if place is not _ON_ITS_WAY:
                self._stored[place][block_hash] = text

    def stored(self, place: _Place, block_hash: bytes) -> None:
        self._places.setdefault(block_hash, []).append(place)
        text = self._texts.get(block_hash)
        if text is not None:
            self._stored[place][block_hash] = text

    def removed(self, place: _Place, block_hash: bytes) -> None:
        known = block_hash in self._texts
        if known and self._stored[place].pop(block_hash, None) is None:
            self._removed.setdefault(place, []).append(short_hash(block_hash))
        self._leave(place, block_hash)

    def coming(self, block_hash: bytes) -> None:
        self._places[block_hash].append(_ON_ITS_WAY)

    def came(self, block_hash: bytes) -> None:
        self._leave(_ON_ITS_WAY, block_hash)

    def _leave(self, place: _Place, block_hash: bytes) -> None:
        places = self._places[block_hash]
        places.remove(place)
        if not places:
            del self._places[block_hash]
            self._texts.pop(block_hash, None)

    def cleared(self) -> None:
        self._is_cleared = True
        self._removed.clear()

    def _in_order(self, place: _Place, stored: dict[bytes, _Text]) -> list[BlockStored]:
        """Events of all that is `stored`, which is empty then."""
        events: list[BlockStored] = []
        last = b""
        for start in reversed(list(stored)):
            chain, block_hash = [], start
            while (text := stored.pop(block_hash, None)) is not None:
                chain.append((block_hash, text))
                block_hash = text.parent
            for block_hash, text in reversed(chain):
                if not text.parent or text.parent != last:
                    events.append(self._event(place, text))
                event = events[-1]
                event.block_hashes.append(short_hash(block_hash))
                event.token_ids += text.tokens
                event.extra_keys.append(text.extra_keys)
                last = block_hash
        return events

    def _event(self, place: _Place, first: _Text) -> BlockStored:
        """One without blocks yet."""
        return BlockStored(
            [], short_hash(first.parent) if first.parent else None, [], self._size,
            first.lora_id, place.medium, first.lora_name, [], place.group,
            *self._specs[place.group],
        )  # fmt: skip

    def _text(self, req: Request, hashes: Sequence[bytes], index: int) -> _Text:
        start, end = index * self._size, (index + 1) * self._size
        message = req.message
        keys: ExtraKeys = [
            (item.content_hash, item.start - start)
            for item in message.media
            if item.start < end and item.start + item.length > start
        ]
        if index == 0 and message.cache_salt is not None:
            keys.append(message.cache_salt)
        adapter = message.adapter
        return _Text(
            hashes[index - 1] if index else b"",
            array("i", req.token_ids[start:end]),
            # Adapters have no numbers here: one that is the same in every engine.
            None if adapter is None else zlib.crc32(adapter.encode()) >> 1,
            message.adapter_name or adapter,
            keys or None,
        )


def short_hash(block_hash: bytes) -> int:
    """The name of a block in events: 64 bits, the last ones of its SHA-256, as vLLM sends them."""
    return int.from_bytes(block_hash[-8:], "big")


def _spec_fields(group: GroupSpec) -> tuple[str, int | None]:
    """What kind of layers a group has, in vLLM's words, and their window."""
    if isinstance(group, StateGroupSpec):
        return "mamba", None
    kind = "full_attention" if group.window is None else "sliding_window"
    if group.latent:
        kind = "mla_attention" if group.window is None else "sliding_window_mla"
    return kind, group.window
