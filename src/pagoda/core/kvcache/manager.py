"""Block tables over shared memory, and the prefixes they share."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from pagoda.base.errors import CapacityError
from pagoda.core.kvcache.block_pool import NULL_BLOCK
from pagoda.core.kvcache.checkpoints import MOST_SHARE, REPLY_INTERVAL, wanted_positions
from pagoda.core.kvcache.hit import CachedBlock, Miss, PrefixHit
from pagoda.core.kvcache.host_tier import HostBlock, HostTier
from pagoda.core.kvcache.integrity import check_blocks
from pagoda.core.kvcache.layout import SlabLayout, blocks_required
from pagoda.core.kvcache.pools import BlockPools
from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.spec import GroupSpec, attention_groups, state_groups
from pagoda.core.kvcache.tables import BlockTables, KeptState
from pagoda.core.kvcache.watcher import CacheWatcher
from pagoda.core.messages import Tiers


class KVCacheManager:
    """Hands out blocks to block tables, one per attention group, and finds cached prefixes.

    All groups share `num_slabs` slabs of memory (`SlabLayout`); of the slabs of a model with one
    group, which are its blocks, the first is the null block. Without groups (an encoder) nobody
    ever needs a block. Recurrent layers come as one group, the last.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        num_slabs: int,
        enable_prefix_caching: bool = True,
        num_host_slabs: int = 0,
    ):
        """`num_host_slabs`: memory of the host for what is evicted, 0 for none."""
        if len({group.block_size for group in groups}) > 1:
            raise ValueError("All KV groups must have the same block size.")
        if len(state_groups(groups)) > 1:
            raise ValueError("Recurrent layers of two kinds in one model are not supported.")
        self.groups = list(groups)
        self.layout = SlabLayout(groups, num_slabs)
        self.block_size = groups[0].block_size if groups else 1
        self.enable_prefix_caching = enable_prefix_caching and bool(groups)
        self._cache = PrefixCache(self.groups)
        self._pools = BlockPools(self.groups, self.layout, self._cache)
        self.host = HostTier(self.groups, num_host_slabs)
        if num_host_slabs and self.enable_prefix_caching:
            self._cache.on_evict = self.host.keep
            self._cache.is_elsewhere = lambda group, at: self.host.slot_of(group, at) is not None
        if groups and not self._pools.num_slabs:
            raise CapacityError(
                f"The KV cache has {num_slabs} blocks; it needs two at least. Give it more memory."
            )
        self.on_cached: list[Callable[[CachedBlock, bytes], object]] = []
        """Told of each block that is cached from now on, with the hash of the one before it in its
        text (empty where there is none)."""
        self.watcher: CacheWatcher | None = None
        self._open: dict[int, BlockTables] = {}
        attention = attention_groups(groups)
        self._num_attention = len(attention)
        self._windows = [(at, one.window) for at, one in enumerate(attention) if one.window]
        self.has_windows = bool(self._windows)
        """Whether blocks are given back while their request goes on."""
        self.has_states = len(attention) < len(groups)
        """Whether the model has recurrent layers."""
        self.unit_bytes = sum(self.layout.block_bytes[: len(attention)]) or 1
        """Bytes of one block in every attention group."""

    def watch(self, watcher: CacheWatcher) -> None:
        """Have somebody told of what comes into the prefix cache from now on, and of what goes."""
        self.watcher, self._cache.watcher = watcher, watcher.pool
        self.host.watch(watcher.host)

    @property
    def total_bytes(self) -> int:
        """What can be held."""
        return self._pools.num_slabs * self.layout.slab_bytes

    @property
    def free_bytes(self) -> int:
        """What nobody holds; cached blocks among it."""
        return self._pools.free_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks that can be held; of a model with several groups, slabs."""
        return self._pools.num_slabs

    @property
    def num_free_blocks(self) -> int:
        """As `num_blocks`, of what nobody holds."""
        return self.free_bytes // self.layout.slab_bytes

    def open(self, owner: str) -> BlockTables:
        """Empty tables; `owner` is a name for messages."""
        return BlockTables(owner, len(self.groups), self._num_attention, self.block_size)

    def bytes_required(self, num_tokens: int, max_chunk: int) -> int:
        """The most that is held while computing `num_tokens` tokens, `max_chunk` a step."""
        required = blocks_required(self.groups, num_tokens, max_chunk)
        return sum(n * size for n, size in zip(required, self.layout.block_bytes, strict=True))

    def bytes_held(self, tables: BlockTables) -> int:
        return sum(n * size for n, size in zip(tables.held, self.layout.block_bytes, strict=True))

    def fits_alone(self, num_tokens: int, max_chunk: int) -> bool:
        """Whether a request of so many tokens can be computed with nobody else there."""
        required = blocks_required(self.groups, num_tokens, max_chunk)
        return self.layout.slabs_for(required) <= self.layout.num_whole

    def match_prefix(self, hashes: Sequence[bytes], max_tokens: int) -> PrefixHit:
        """The longest cached prefix of whole blocks, of at most `max_tokens` tokens."""
        found = self._cache.match(hashes, max_tokens // self.block_size)
        size = self.block_size
        in_host = []
        for group, index in found.elsewhere:
            slot = self.host.slot_of(group, hashes[index])
            assert slot is not None  # nothing was evicted since
            in_host.append(HostBlock(group, index, slot))
        return PrefixHit(found.num_blocks * size, found.tables, found.num_attended * size, in_host)

    def why_missed(self, hashes: Sequence[bytes], hit: PrefixHit) -> Miss | None:
        """Why the block behind a hit was not found; None where all whole blocks were. `no_state`:
        it is there, and the state that recurrent layers go on from is not."""
        if self.has_states and hit.num_attended > hit.num_tokens:
            return "no_state"
        index = hit.num_tokens // self.block_size
        if index >= len(hashes):
            return None
        evicted = any(one.was_evicted(hashes[index]) for one in (self._cache, self.host))
        return "evicted" if evicted else "new"

    def tiers(self, hashes: Sequence[bytes], hit: PrefixHit) -> Tiers:
        """Where a hit's tokens are that are not in the pool, or were not computed in it."""
        places = {one.place for one in hit.in_host}
        others = set(range(hit.num_tokens // self.block_size)) - places
        from_disk = sum(hashes[place] in self._cache.from_disk for place in others)
        return Tiers(len(places) * self.block_size, from_disk * self.block_size)

    def bytes_shared(self, hit: PrefixHit) -> int:
        """Bytes of the hit's blocks that somebody holds already, so that they cost nothing."""
        parts = zip(self._pools.pools, hit.tables, self.layout.block_bytes, strict=True)
        return sum(size * sum(pool.ref_counts[b] > 0 for b in table) for pool, table, size in parts)

    def attach(self, tables: BlockTables, hit: PrefixHit) -> bool:
        """Start empty tables with the blocks of a hit; False, with nothing changed, where there is
        no room for those that are in the host's memory.

        Those are in the prefix cache once a step has copied them, and `advance` says so."""
        for group, blocks in enumerate(hit.tables):
            self._pools.share(group, blocks)
            tables.held[group] += len(blocks) - blocks.count(NULL_BLOCK)
            if group < self._num_attention:
                tables.tables[group].extend(blocks)
            elif blocks:
                tables.started_from = blocks[-1]
        first = min((one.place for one in hit.in_host), default=1 << 62)
        tables.num_cached = min(hit.num_tokens // self.block_size, first)
        tables.capacity = hit.num_tokens
        tables.next_advance = hit.num_tokens + (0 if hit.in_host else self.block_size)
        self._open[id(tables)] = tables
        return self._fetch(tables, hit.in_host)

    def _fetch(self, tables: BlockTables, blocks: Sequence[HostBlock]) -> bool:
        """Have blocks copied from the host's memory into new ones of the tables."""
        self.host.hold(blocks)  # else what makes room for them might take their place
        fits = all(self._fetch_one(tables, one) for one in blocks)
        self.host.let_go(blocks)
        if not fits:
            self.free(tables)
        return fits

    def _fetch_one(self, tables: BlockTables, one: HostBlock) -> bool:
        found = self._pools.allocate(one.group, 1)
        if found is None:
            return False
        self.host.fetch(one.group, one.slot, found[0])
        tables.held[one.group] += 1
        if one.group < self._num_attention:
            tables.tables[one.group][one.place] = found[0]
        else:
            tables.started_from = found[0]
        return True

    def has_room(self, tables: BlockTables, num_tokens: int) -> bool:
        """Whether `allocate` would succeed, as far as the free bytes tell."""
        count = -(-(num_tokens - tables.capacity) // self.block_size)
        return count * self.unit_bytes <= self._pools.free_bytes

    def allocate(self, tables: BlockTables, num_tokens: int) -> list[list[int]] | None:
        """Make room for `num_tokens` tokens, and for a state: the new blocks per attention group,
        or None when too few are free (then nothing changes)."""
        count = max(0, -(-(num_tokens - tables.capacity) // self.block_size))
        added: list[list[int]] = []
        for group in range(self._num_attention):
            blocks = self._pools.allocate(group, count)
            if blocks is None:
                self._give_back(added)
                return None
            added.append(blocks)
        if self.has_states and tables.state == NULL_BLOCK:
            state = self._pools.allocate(self._num_attention, 1)
            if state is None:
                self._give_back(added)
                return None
            tables.state = state[0]
            tables.held[-1] += 1
        for group, blocks in enumerate(added):
            tables.tables[group].extend(blocks)
            tables.held[group] += count
        tables.capacity += count * self.block_size
        self._open[id(tables)] = tables
        return added

    def extend(self, tables: Sequence[BlockTables]) -> list[list[int]] | None:
        """One more block in each attention group for each of several full tables: per group, a
        block for each of them, or None when too few are free for all (then nothing changes)."""
        added: list[list[int]] = []
        for group in range(self._num_attention):
            blocks = self._pools.allocate(group, len(tables))
            if blocks is None:
                self._give_back(added)
                return None
            added.append(blocks)
        for group, blocks in enumerate(added):
            for one, block in zip(tables, blocks, strict=True):
                one.tables[group].append(block)
                one.held[group] += 1
        for one in tables:
            one.capacity += self.block_size
        return added

    def _give_back(self, added: list[list[int]]) -> None:
        for group, blocks in enumerate(added):
            self._pools.release(group, blocks[::-1])

    def want_states(
        self, tables: BlockTables, prompt: Sequence[int], turn_ends: Collection[int], hit: PrefixHit
    ) -> None:
        """Choose behind which of a prompt's tokens states are kept, and what is in a window
        there."""
        if not (self.has_states or self._windows) or not self.enable_prefix_caching:
            return
        tables.prompt_len = len(prompt)
        positions = wanted_positions(prompt, turn_ends, self.block_size, hit.num_attended)
        tables.wanted = [position for position in positions if position > hit.num_tokens]

    def hashes_with_states(
        self, tables: BlockTables, hashes: Sequence[bytes], num_tokens: int = 1 << 62
    ) -> list[bytes]:
        """Hashes of the blocks within the first `num_tokens` tokens behind which states are
        wanted."""
        size, last = self.block_size, min(num_tokens, len(hashes) * self.block_size)
        return [hashes[end // size - 1] for end in tables.wanted if end <= last]

    def until_kept(self, tables: BlockTables, start: int, num_tokens: int) -> int:
        """At most `num_tokens`, so that a step from `start` ends where a state is wanted."""
        place = bisect_right(tables.wanted, start)
        if not self.has_states or place == len(tables.wanted):
            return num_tokens
        return min(num_tokens, tables.wanted[place] - start)

    def plan_states(self, tables: BlockTables, start: int, num_drafts: int = 0) -> tuple[int, ...]:
        """The state read by the step that is planned from `start` on, the one written behind the
        last known token, and one behind each draft: of fewer drafts where memory is short.

        What the step before wrote is kept where that is wanted and memory is left: then this one
        writes elsewhere. A block that this step reads is given back when the next one is planned:
        whoever gets it writes it in a later step.
        """
        read = self._plan_read(tables, start)
        tables.draft_states = self._take_draft_states(num_drafts)
        tables.held[-1] += len(tables.draft_states)
        return read, tables.state, *tables.draft_states

    def keep_state(self, tables: BlockTables, num_known: int, num_accepted: int) -> None:
        """A step with drafts wrote states from the one behind `num_known` tokens on: go on from the
        one behind so many accepted drafts."""
        states = [tables.state, *tables.draft_states]
        tables.state, tables.draft_states = states[num_accepted], []
        passed, rejected = states[:num_accepted], states[num_accepted + 1 :]
        for num_tokens, block in enumerate(passed, num_known):
            if self._is_kept(tables, num_tokens):
                self._limit_kept()
                self._keep(tables, num_tokens, block)
            else:
                rejected.append(block)
        self._pools.release(self._num_attention, rejected)
        tables.held[-1] -= len(rejected)

    def _take_draft_states(self, count: int) -> list[int]:
        """Blocks for one step. What requests may need meanwhile is left to them: the next block of
        each one's output."""
        group, taken = self._num_attention, list[int]()
        least = len(self._open) * self.unit_bytes + self.layout.block_bytes[group]
        while len(taken) < count and self._pools.free_bytes >= least:
            found = self._pools.allocate(group, 1)
            if found is None:
                break
            taken += found
        return taken

    def _plan_read(self, tables: BlockTables, start: int) -> int:
        if not tables.started:
            tables.started = True
            return tables.started_from
        group = self._num_attention
        if tables.started_from != NULL_BLOCK:
            self._pools.release(group, (tables.started_from,))
            tables.started_from = NULL_BLOCK
            tables.held[group] -= 1
        read = tables.state
        if self._is_kept(tables, start):
            self._limit_kept()
            block = self._pools.allocate(group, 1)
            if block is not None:
                self._keep(tables, start, read)
                tables.state = block[0]
                tables.held[group] += 1
        return read

    def _is_kept(self, tables: BlockTables, num_tokens: int) -> bool:
        """Whether the state behind so many of a request's tokens is wanted later."""
        if not self.enable_prefix_caching:
            return False
        return _is_rolling(tables, num_tokens) or num_tokens in tables.wanted

    def _keep(self, tables: BlockTables, num_tokens: int, block: int) -> None:
        tables.kept.append(KeptState(num_tokens, block, _is_rolling(tables, num_tokens)))
        tables.next_advance = min(tables.next_advance, num_tokens)

    def advance(self, tables: BlockTables, hashes: Sequence[bytes], num_computed: int) -> None:
        """The first `num_computed` tokens are in the cache for good: put full blocks into the
        prefix cache under `hashes` (empty: do not), and let sliding groups give back what
        their windows have passed."""
        full = num_computed // self.block_size
        last = min(full, len(hashes))
        for index in range(tables.num_cached, last):
            for group, table in enumerate(tables.tables):
                if table[index] != NULL_BLOCK:
                    self._insert(tables, group, hashes, index, table[index])
        tables.num_cached = max(tables.num_cached, last)
        if self._windows:
            self._free_passed(tables, num_computed)
        tables.next_advance = (full + 1) * self.block_size
        if tables.kept:
            self._publish_states(tables, hashes, num_computed)

    def _publish_states(
        self, tables: BlockTables, hashes: Sequence[bytes], num_computed: int
    ) -> None:
        group, waiting = self._num_attention, []
        for kept in tables.kept:
            index = kept.num_tokens // self.block_size - 1
            if kept.num_tokens > num_computed:
                waiting.append(kept)
                continue
            if index < len(hashes):
                self._insert(tables, group, hashes, index, kept.block)
            self._pools.release(group, (kept.block,))
            tables.held[group] -= 1
            if kept.rolling and kept.block in self._cache.hash_of[group]:
                if tables.latest is not None:
                    self._forget_state(*tables.latest)
                tables.latest = (hashes[index], kept.block)
        tables.kept = waiting

    def _insert(
        self, tables: BlockTables, group: int, hashes: Sequence[bytes], index: int, block: int
    ) -> None:
        self._cache.insert(group, hashes[index], block)
        if self.watcher is not None:
            self.watcher.name(tables.owner, hashes, index)
        parent = hashes[index - 1] if index else b""
        for tell in self.on_cached:
            tell(CachedBlock(group, hashes[index], block), parent)

    def _forget_state(self, block_hash: bytes, block: int) -> None:
        """Unless somebody uses it, or it is something else by now."""
        group = self._num_attention
        known = self._cache.hash_of[group].get(block) == block_hash
        if known and not self._pools.pools[group].ref_counts[block]:
            self._pools.forget(group, (block,), worthless=True)

    def _limit_kept(self) -> None:
        """Let the state that was used least lately go where they take too much."""
        group = self._num_attention
        cached = self._cache.hash_of[group]
        most = int(MOST_SHARE * self.total_bytes / self.layout.block_bytes[group])
        if len(cached) < max(1, most):
            return
        for block in self._pools.pools[group].free_blocks():
            if block in cached:
                self._pools.forget(group, (block,))
                return

    def _free_passed(self, tables: BlockTables, num_computed: int) -> None:
        """The next query is at `num_computed` and sees `window` positions, its own included."""
        for group, window in self._windows:
            table = tables.tables[group]
            passed = max(0, num_computed - window + 1) // self.block_size
            first = passed
            while first > 0 and table[first - 1] != NULL_BLOCK:
                first -= 1
            for index in range(passed - 1, first - 1, -1):
                wanted = self._is_wanted(tables, index, window)
                self._pools.release(group, table[index : index + 1], expendable=not wanted)
            table[first:passed] = [NULL_BLOCK] * (passed - first)
            tables.held[group] -= passed - first

    def _is_wanted(self, tables: BlockTables, index: int, window: int) -> bool:
        """Whether later requests may go on where a block is inside the window."""
        start = index * self.block_size
        place = bisect_right(tables.wanted, start)
        if place == len(tables.wanted):
            return False
        return tables.wanted[place] - window + 1 < start + self.block_size

    def free(self, tables: BlockTables) -> None:
        """Give everything back. The end of a prefix is reused before its start."""
        for group, table in enumerate(tables.tables):
            self._pools.release(group, table[::-1])
        if self.has_states:
            self._pools.release(self._num_attention, tables.states)
        tables.reset(self.block_size)
        self._open.pop(id(tables), None)

    def cached_blocks(self) -> list[CachedBlock]:
        """All of the prefix cache: what is held first, then what would be evicted last."""
        return [
            CachedBlock(group, self._cache.hash_of[group][block], block)
            for group, block in self._pools.in_order_of_use()
        ]

    def expend(self, hashes: Sequence[bytes]) -> None:
        """Nobody will ask for these blocks of a text: they go before others, the last first."""
        for group, pool in enumerate(self._pools.pools):
            found = (self._cache.block_of(group, block_hash) for block_hash in reversed(hashes))
            free = [block for block in found if block and not pool.ref_counts[block]]
            self._pools.expend(group, free)

    def is_worth_keeping(self, block: CachedBlock) -> bool:
        """Whether a block is still cached as what it was, and not the first to be evicted."""
        cached = self._cache.block_of(block.group, block.hash) == block.block
        return cached and not self._pools.is_expendable(block.group, block.block)

    def find(self, group: int, block_hash: bytes) -> int | None:
        """The block of the pool that is cached under a hash."""
        return self._cache.block_of(group, block_hash)

    def adopt(
        self, group: int, block_hash: bytes, parent: bytes, *, from_disk: bool = False
    ) -> int | None:
        """A free block that is in a group's prefix cache under a hash from now on, for the caller
        to fill before anything else happens; None where the hash is known or no block is free.
        `parent`: as `on_cached` is told.

        It is evicted later than what was adopted before it. What makes room for it does not go to
        the host's memory: no step would copy that before it is filled.
        """
        if not self.enable_prefix_caching or self._cache.has(group, block_hash):
            return None
        keep, self._cache.on_evict = self._cache.on_evict, lambda *_: None
        found = self._pools.allocate(group, 1)
        self._cache.on_evict = keep
        if found is None:
            return None
        self._cache.insert(group, block_hash, found[0])
        if from_disk:
            self._cache.from_disk.add(block_hash)
        self._pools.release(group, found)
        for tell in self.on_cached:
            tell(CachedBlock(group, block_hash, found[0]), parent)
        return found[0]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks that nobody holds, in the host's memory as well; True when no
        cached block is left."""
        self.empty_pool()
        self.host.forget()
        is_empty = not any(self._cache.hash_of)
        if is_empty and self.watcher is not None:
            self.watcher.cleared()
        return is_empty

    def empty_pool(self) -> None:
        """Have all that nobody holds evicted."""
        for group, cached in enumerate(self._cache.hash_of):
            refs = self._pools.pools[group].ref_counts
            self._pools.forget(group, [block for block in cached if refs[block] == 0])

    def check_integrity(self) -> None:
        """RuntimeError unless every block is either free or held as often as it is counted."""
        check_blocks(self._open.values(), self.block_size, self._pools, self._cache)
        self.host.check()


def _is_rolling(tables: BlockTables, num_tokens: int) -> bool:
    return num_tokens > tables.prompt_len and num_tokens % REPLY_INTERVAL == 0
