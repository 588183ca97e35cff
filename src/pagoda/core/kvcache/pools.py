"""The blocks of all groups: who holds them, and which group holds which slab."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count

from pagoda.core.kvcache.block_pool import NULL_BLOCK, BlockPool
from pagoda.core.kvcache.layout import SlabLayout
from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.spec import GroupSpec


class BlockPools:
    """Hands out blocks of any group. A group that has none left takes a free slab, else the slab,
    its own or another's, that nobody has used for the longest time, else single cached blocks from
    slabs of its own. Filling one slab after the other keeps the rest whole for other groups.

    A model with one group has all slabs from the start, and its blocks are forgotten one by one.
    """

    def __init__(self, groups: Sequence[GroupSpec], layout: SlabLayout, cache: PrefixCache):
        self.layout = layout
        self._cache = cache
        self.pools = [BlockPool(layout.num_ids(group)) for group in range(len(groups))]
        self._shared = len(groups) > 1
        self._now = count()
        self._used = [0] * layout.num_slabs
        """How many blocks of each slab somebody holds."""
        self._idle: list[OrderedDict[int, int]] = [OrderedDict() for _ in groups]
        """A group's slabs that nobody uses, with the time since when."""
        self._expendable: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Groups and cached blocks that are hardly worth their memory."""
        self._num_idle = [0] * len(groups)
        """Blocks in them: counted, because every step asks what is free."""
        self._free: list[int] = []
        if self._shared:
            self._free = [
                slab for slab in reversed(range(layout.num_slabs))
                if any(layout.blocks_of(group, slab) for group in range(len(groups)))
            ]  # fmt: skip
            self.num_slabs = len(self._free)
        else:
            # Each slab is a block, and all are granted at once: there may be a million.
            blocks = range(1, layout.num_ids(0)) if groups else range(0)
            self.num_slabs = len(blocks)
            for pool in self.pools:
                pool.grant(blocks)

    @property
    def free_bytes(self) -> int:
        """What nobody holds; cached blocks among it."""
        sizes = self.layout.block_bytes
        if not self._shared:
            return sum(pool.num_free * size for pool, size in zip(self.pools, sizes, strict=True))
        total = len(self._free) * self.layout.slab_bytes
        for group, pool in enumerate(self.pools):
            total += len(self._idle[group]) * self.layout.slab_bytes
            total += (pool.num_free - self._num_idle[group]) * sizes[group]
        return total

    def allocate(self, group: int, num_blocks: int) -> list[int] | None:
        """Blocks that are no longer cached, or None, with nothing changed but what is forgotten."""
        pool = self.pools[group]
        if not self._shared:
            if num_blocks > pool.num_free:
                return None
            blocks = pool.allocate(num_blocks)
            self._cache.evict(0, blocks)
            return blocks
        taken: list[int] = []
        while len(taken) < num_blocks:
            if not self._make_front_usable(group):
                self.release(group, taken[::-1])
                return None
            taken += pool.allocate(1)
            self._enter(group, taken[-1])
        return taken

    def share(self, group: int, blocks: Sequence[int]) -> None:
        """One more holder for each block; null blocks are passed over."""
        pool = self.pools[group]
        if not self._shared:
            pool.share(blocks)
            return
        for block in blocks:
            if block != NULL_BLOCK:
                if pool.ref_counts[block] == 0:
                    self._enter(group, block)
                pool.share((block,))

    def release(self, group: int, blocks: Sequence[int], *, expendable: bool = False) -> None:
        """One holder less for each block; null blocks are passed over. What is `expendable` goes
        before any other cached block does, where groups share the memory."""
        pool, cached = self.pools[group], self._cache.hash_of[group]
        pool.release(blocks, cached)
        if not self._shared:
            return
        for block in blocks:
            if block != NULL_BLOCK and pool.ref_counts[block] == 0:
                if expendable and block in cached:
                    self._expendable[group, block] = None
                self._leave(group, block)

    def expend(self, group: int, blocks: Sequence[int]) -> None:
        """Have cached blocks that nobody holds go before any others, the first of them first."""
        if self._shared:
            self._expendable.update(dict.fromkeys((group, block) for block in blocks))
        else:
            self.pools[group].reuse_first(blocks, self._cache.hash_of[group])

    def is_expendable(self, group: int, block: int) -> bool:
        return (group, block) in self._expendable

    def forget(self, group: int, blocks: Sequence[int], *, worthless: bool = False) -> None:
        """Evict free blocks; they are reused next. `worthless` as of `PrefixCache.evict`."""
        self._cache.evict(group, blocks, worthless=worthless)
        for block in blocks:
            self.pools[group].reuse_next(block)
        for slab in {self.layout.slab_of(group, block) for block in blocks}:
            if slab in self._idle[group]:
                self._give_back_if_empty(group, slab)

    def in_order_of_use(self) -> Iterator[tuple[int, int]]:
        """(group, block) of all cached blocks: held ones, then what would be evicted last."""
        free: list[tuple[int, int, int]] = []
        for group, pool in enumerate(self.pools):
            hash_of = self._cache.hash_of[group]
            yield from ((group, block) for block in hash_of if pool.ref_counts[block])
            cached = [block for block in reversed(pool.free_blocks()) if block in hash_of]
            free += [(place, group, block) for place, block in enumerate(cached)]
        yield from ((group, block) for _, group, block in sorted(free))

    def check(self) -> None:
        """RuntimeError where slabs and blocks do not add up."""
        if not self._shared:
            return
        held = set(self._free)
        for group, pool in enumerate(self.pools):
            inside = sum(len(self.layout.blocks_of(group, slab)) for slab in self._idle[group])
            if inside != self._num_idle[group]:
                raise RuntimeError(f"{inside} idle blocks, {self._num_idle[group]} counted.")
            owned = {self.layout.slab_of(group, block) for block in pool.free_blocks()}
            used = [block for block, refs in enumerate(pool.ref_counts) if refs]
            owned |= {self.layout.slab_of(group, block) for block in used}
            if owned & held:
                raise RuntimeError(f"Slabs {owned & held} belong to two.")
            held |= owned
            for slab in owned:
                inside = sum(self.layout.slab_of(group, block) == slab for block in used)
                if inside != self._used[slab] or (inside == 0) != (slab in self._idle[group]):
                    raise RuntimeError(f"Slab {slab} counts {self._used[slab]} of {inside} blocks.")
        if len(held) != self.num_slabs:
            raise RuntimeError(f"{len(held)} of {self.num_slabs} slabs are somewhere.")

    def _make_front_usable(self, group: int) -> bool:
        """Have a block that is not cached at the front of the group's free ones."""
        pool, hash_of = self.pools[group], self._cache.hash_of[group]
        slab = None
        while slab is None:
            if pool.front != NULL_BLOCK and pool.front not in hash_of:
                return True
            slab = self._free_slab(group)
            if slab is None and not self._expendable:
                slab = self._oldest_idle_slab(group)
                break
            if slab is None:
                self._spend()
        if slab is not None:
            pool.grant(self.layout.blocks_of(group, slab))
            self._rest(group, slab)
        elif pool.front != NULL_BLOCK:
            self._cache.evict(group, (pool.front,))
        return pool.front != NULL_BLOCK

    def _spend(self) -> None:
        """Let the expendable block go that was used least lately."""
        (group, block), _ = self._expendable.popitem(last=False)
        if block in self._cache.hash_of[group]:
            self.forget(group, (block,), worthless=True)

    def _free_slab(self, group: int) -> int | None:
        for place in range(len(self._free) - 1, -1, -1):
            if self.layout.blocks_of(group, self._free[place]):
                return self._free.pop(place)
        return None

    def _oldest_idle_slab(self, group: int) -> int | None:
        """Taken away from its group."""
        oldest: tuple[int, int, int] | None = None
        for owner, idle in enumerate(self._idle):
            for slab, since in idle.items():
                if self.layout.blocks_of(group, slab):
                    if oldest is None or since < oldest[0]:
                        oldest = (since, owner, slab)
                    break
        if oldest is None:
            return None
        self._withdraw(*oldest[1:])
        return oldest[2]

    def _withdraw(self, group: int, slab: int) -> None:
        blocks = self.layout.blocks_of(group, slab)
        self._cache.evict(group, blocks)
        self.pools[group].withdraw(blocks)
        self._wake(group, slab)

    def _enter(self, group: int, block: int) -> None:
        """A block has its first holder."""
        self._expendable.pop((group, block), None)
        slab = self.layout.slab_of(group, block)
        if not self._used[slab]:
            self._wake(group, slab)
        self._used[slab] += 1

    def _leave(self, group: int, block: int) -> None:
        """A block's last holder is gone."""
        slab = self.layout.slab_of(group, block)
        self._used[slab] -= 1
        if not self._used[slab]:
            self._rest(group, slab)
            self._give_back_if_empty(group, slab)

    def _rest(self, group: int, slab: int) -> None:
        """A slab of the group has no user."""
        self._idle[group][slab] = next(self._now)
        self._num_idle[group] += len(self.layout.blocks_of(group, slab))

    def _wake(self, group: int, slab: int) -> None:
        """It has one, or is no longer the group's."""
        del self._idle[group][slab]
        self._num_idle[group] -= len(self.layout.blocks_of(group, slab))

    def _give_back_if_empty(self, group: int, slab: int) -> None:
        hash_of = self._cache.hash_of[group]
        if not any(block in hash_of for block in self.layout.blocks_of(group, slab)):
            self._withdraw(group, slab)
            self._free.append(slab)
