"""Blocks that made room in the pool, kept in the host's memory."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pagoda.core.kvcache.layout import SlabLayout
from pagoda.core.kvcache.pools import BlockPools
from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.core.kvcache.watcher import HostWatcher
from pagoda.core.plan import BlockCopy


class HostBlock(NamedTuple):
    """A block of a prefix that is in the host's memory."""

    group: int
    place: int
    """In the prefix, in blocks."""
    slot: int


class HostTier:
    """Slots in the host's memory, laid out and shared between groups as the pool's blocks are.

    What is evicted from the pool comes here, and goes when a slot is needed for something else,
    what was used least lately first. A block that is fetched keeps its slot: evicted again, it
    costs no copy. Copies are orders to the runner, which does them in their order before a step
    computes, so a slot or a block may be given away again while its copy is yet to be done.
    """

    def __init__(self, groups: Sequence[GroupSpec], num_slabs: int):
        self._cache = PrefixCache(groups)
        self._pools = BlockPools(groups, SlabLayout(groups, num_slabs), self._cache)
        self._orders: list[BlockCopy] = []
        self._coming: dict[tuple[int, int], bytes] = {}
        """Hashes of slots that are held until the copy into them is known to be done."""
        self._watcher: HostWatcher | None = None

    def watch(self, watcher: HostWatcher) -> None:
        """Have somebody told of what can be fetched."""
        self._watcher = self._cache.watcher = watcher

    def slot_of(self, group: int, block_hash: bytes) -> int | None:
        return self._cache.block_of(group, block_hash)

    def was_evicted(self, block_hash: bytes) -> bool:
        """Whether a block of that content was here not long ago."""
        return self._cache.was_evicted(block_hash)

    def keep(self, group: int, block_hash: bytes, block: int) -> None:
        """Have a block copied before a step overwrites it; it is known here once that is done."""
        slot = self._cache.block_of(group, block_hash)
        if slot is not None:
            self.hold([HostBlock(group, 0, slot)])
            self.let_go([HostBlock(group, 0, slot)])
            return
        found = self._pools.allocate(group, 1)
        if found is None:
            return
        self._coming[group, found[0]] = block_hash
        if self._watcher is not None:
            self._watcher.coming(group, block_hash)
        self._orders.append(BlockCopy(group, block, found[0], to_host=True))

    def fetch(self, group: int, slot: int, block: int) -> None:
        """Have a slot copied into a block of the pool."""
        self._orders.append(BlockCopy(group, block, slot, to_host=False))

    def hold(self, blocks: Iterable[HostBlock]) -> None:
        """Their slots stay what they are until they are let go of."""
        for one in blocks:
            self._pools.share(one.group, (one.slot,))

    def let_go(self, blocks: Iterable[HostBlock]) -> None:
        for one in blocks:
            self._pools.release(one.group, (one.slot,))

    def take_orders(self) -> list[BlockCopy]:
        """What the next step is to copy."""
        orders, self._orders = self._orders, []
        return orders

    def copied(self, orders: Sequence[BlockCopy], done: bool) -> None:
        """The step that was to copy these has ended; `done`: without an error."""
        for order in orders:
            key = order.group, order.slot
            if not order.to_host or key not in self._coming:
                continue
            block_hash = self._coming.pop(key)
            if done and block_hash:
                self._cache.insert(order.group, block_hash, order.slot)
            if block_hash and self._watcher is not None:
                self._watcher.came(order.group, block_hash)
            self._pools.release(order.group, (order.slot,))

    def forget(self) -> None:
        """Forget all blocks, those whose copies are not yet done included."""
        waiting = {(order.group, order.slot) for order in self._orders if order.to_host}
        for key, block_hash in self._coming.items():
            if block_hash and self._watcher is not None:
                self._watcher.came(key[0], block_hash)
            self._coming[key] = b""  # what comes is known under no name
        for group, slot in waiting:
            del self._coming[group, slot]
            self._pools.release(group, (slot,))
        self._orders = []
        for group, cached in enumerate(self._cache.hash_of):
            self._pools.forget(group, list(cached))

    def check(self) -> None:
        """RuntimeError where slots do not add up: between steps only those are held into which
        something is being copied."""
        for group, pool in enumerate(self._pools.pools):
            held = {slot for slot, count in enumerate(pool.ref_counts) if count}
            coming = {slot for at, slot in self._coming if at == group}
            if held != coming:
                raise RuntimeError(f"Host slots {held ^ coming} of group {group} have no holder.")
        self._pools.check()
        self._cache.check()
