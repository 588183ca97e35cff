"""Block tables over one pool of KV blocks, and the prefixes they share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pagoda.base.errors import CapacityError
from pagoda.core.kvcache.block_pool import NULL_BLOCK, BlockPool
from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.spec import KVGroupSpec


class BlockTables:
    """The blocks one owner holds: a request, or anything else that needs them to stay.

    A loader from disk, say, opens tables of its own, allocates, fills the blocks, lets
    `advance` publish their hashes, and frees the tables again.
    """

    __slots__ = ("capacity", "next_advance", "num_cached", "num_held", "owner", "tables")

    def __init__(self, owner: str, num_groups: int, block_size: int):
        self.owner = owner
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Per group, the block of each `block_size` positions; all equally long."""
        self.capacity = 0
        """Tokens that the tables have room for."""
        self.num_cached = 0
        """Leading blocks that are in the prefix cache, or had an equal one there."""
        self.num_held = 0
        """Blocks in the tables that are not null."""
        self.next_advance = block_size
        """`advance` has something to do from this many computed tokens on."""


Miss = Literal["new", "evicted"]
"""No request computed a block with this content behind this prefix, or it made room for others."""


class CachedBlock(NamedTuple):
    group: int
    hash: bytes
    block: int


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix; its blocks are nobody's until `attach`."""

    num_tokens: int
    tables: list[list[int]]
    """Blocks per group; null where a sliding window no longer reaches."""


class KVCacheManager:
    """Hands out blocks to block tables, one per KV group, and finds cached prefixes.

    All groups draw from one pool, so a block id belongs to one group at a time. `num_blocks`
    counts the null block 0, like the first dimension of the runner's tensors. Without groups (an
    encoder) nobody ever needs a block.
    """

    def __init__(
        self, groups: Sequence[KVGroupSpec], num_blocks: int, enable_prefix_caching: bool = True
    ):
        if groups and num_blocks < 2:
            raise CapacityError(
                f"The KV cache has {num_blocks} blocks; it needs two at least. Give it more memory."
            )
        if len({group.block_size for group in groups}) > 1:
            raise ValueError("All KV groups must have the same block size.")
        self.groups = list(groups)
        self.block_size = groups[0].block_size if groups else 1
        self.enable_prefix_caching = enable_prefix_caching and bool(groups)
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache(self.groups)
        self._open: dict[int, BlockTables] = {}
        self._windows = [
            (index, group.window) for index, group in enumerate(groups) if group.window is not None
        ]

    @property
    def num_blocks(self) -> int:
        """Blocks that can be held."""
        return self._pool.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a holder; cached ones among them."""
        return self._pool.num_free

    def open(self, owner: str) -> BlockTables:
        """Empty tables; `owner` is a name for messages."""
        return BlockTables(owner, len(self.groups), self.block_size)

    def blocks_required(self, num_tokens: int, max_chunk: int) -> int:
        """The most blocks held while computing `num_tokens` tokens, `max_chunk` a step.

        A sliding group gives blocks back in `advance`, at every block's end and when a step's
        result is in. Meanwhile the next step may be planned, so two chunks lie past the window.
        """
        blocks = -(-num_tokens // self.block_size)
        total = 0
        for group in self.groups:
            held = blocks
            if group.window is not None:
                held = min(blocks, (group.window + 2 * max_chunk) // self.block_size + 3)
            total += held
        return total

    def match_prefix(self, hashes: Sequence[bytes], max_tokens: int) -> PrefixHit:
        """The longest cached prefix of whole blocks, of at most `max_tokens` tokens."""
        count, tables = self._cache.match(hashes, max_tokens // self.block_size)
        return PrefixHit(count * self.block_size, tables)

    def why_missed(self, hashes: Sequence[bytes], hit: PrefixHit) -> Miss | None:
        """Why the block behind a hit was not found; None where all whole blocks were."""
        index = hit.num_tokens // self.block_size
        if index >= len(hashes):
            return None
        return "evicted" if self._cache.was_evicted(hashes[index]) else "new"

    def blocks_shared(self, hit: PrefixHit) -> int:
        """How many of the hit's blocks somebody holds already, so that they cost nothing."""
        refs = self._pool.ref_counts
        return sum(refs[block] > 0 for table in hit.tables for block in table)

    def attach(self, tables: BlockTables, hit: PrefixHit) -> None:
        """Start empty tables with the blocks of a hit."""
        for table, blocks in zip(tables.tables, hit.tables, strict=True):
            self._pool.share(blocks)
            table.extend(blocks)
            tables.num_held += len(blocks) - blocks.count(NULL_BLOCK)
        count = hit.num_tokens // self.block_size
        tables.num_cached = count
        tables.capacity = hit.num_tokens
        tables.next_advance = hit.num_tokens + self.block_size
        self._open[id(tables)] = tables

    def has_room(self, tables: BlockTables, num_tokens: int) -> bool:
        """Whether `allocate` would succeed."""
        count = -(-(num_tokens - tables.capacity) // self.block_size)
        return count * len(self.groups) <= self._pool.num_free

    def allocate(self, tables: BlockTables, num_tokens: int) -> list[list[int]] | None:
        """Make room for `num_tokens` tokens: the new blocks per group, or None when too few
        are free (then nothing changes)."""
        if not self.has_room(tables, num_tokens):
            return None
        count = max(0, -(-(num_tokens - tables.capacity) // self.block_size))
        added = []
        for table in tables.tables:
            blocks = self._pool.allocate(count)
            self._cache.evict(blocks)
            table.extend(blocks)
            added.append(blocks)
        tables.capacity += count * self.block_size
        tables.num_held += count * len(added)
        self._open[id(tables)] = tables
        return added

    def advance(self, tables: BlockTables, hashes: Sequence[bytes], num_computed: int) -> None:
        """The first `num_computed` tokens are in the cache for good: put full blocks into the
        prefix cache under `hashes` (empty: do not), and let sliding groups give back what
        their windows have passed."""
        full = num_computed // self.block_size
        last = min(full, len(hashes))
        for index in range(tables.num_cached, last):
            for group, table in enumerate(tables.tables):
                if table[index] != NULL_BLOCK:
                    self._cache.insert(group, hashes[index], table[index])
        tables.num_cached = max(tables.num_cached, last)
        if self._windows:
            self._free_passed(tables, num_computed)
        tables.next_advance = (full + 1) * self.block_size

    def _free_passed(self, tables: BlockTables, num_computed: int) -> None:
        """The next query is at `num_computed` and sees `window` positions, its own included."""
        for group, window in self._windows:
            table = tables.tables[group]
            passed = max(0, num_computed - window + 1) // self.block_size
            first = passed
            while first > 0 and table[first - 1] != NULL_BLOCK:
                first -= 1
            self._pool.release(reversed(table[first:passed]), self._cache.key_of)
            table[first:passed] = [NULL_BLOCK] * (passed - first)
            tables.num_held -= passed - first

    def free(self, tables: BlockTables) -> None:
        """Give everything back. The end of a prefix is reused before its start."""
        for table in tables.tables:
            self._pool.release(reversed(table), self._cache.key_of)
            table.clear()
        tables.capacity = tables.num_cached = tables.num_held = 0
        tables.next_advance = self.block_size
        self._open.pop(id(tables), None)

    def cached_blocks(self) -> list[CachedBlock]:
        """All of the prefix cache: what is held first, then what would be evicted last."""
        free = self._pool.free_blocks()[::-1]
        held = [block for block in self._cache.key_of if self._pool.ref_counts[block]]
        return [
            CachedBlock(*self._cache.key_of[block], block)
            for block in (*held, *free)
            if block in self._cache.key_of
        ]

    def adopt(self, group: int, block_hash: bytes) -> int | None:
        """A free block that is in the prefix cache under a hash from now on, for the caller to
        fill before anything else happens; None where the hash is known or no block is free.

        It is evicted later than what was adopted before it.
        """
        if not self.enable_prefix_caching or not self._pool.num_free:
            return None
        if self._cache.has(group, block_hash):
            return None
        (block,) = self._pool.allocate(1)
        self._cache.evict([block])
        self._cache.insert(group, block_hash, block)
        self._pool.release([block], self._cache.key_of)
        return block

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks that nobody holds; True when no cached block is left."""
        refs = self._pool.ref_counts
        self._cache.evict([block for block in self._cache.key_of if refs[block] == 0])
        return not self._cache.key_of

    def check_integrity(self) -> None:
        """RuntimeError unless every block is either free or held as often as it is counted."""
        held: Counter[int] = Counter()
        for tables in self._open.values():
            mine = [block for table in tables.tables for block in table if block != NULL_BLOCK]
            if len(mine) != len(set(mine)):
                raise RuntimeError(f"A block lies twice in the tables of {tables.owner}.")
            if any(len(table) * self.block_size != tables.capacity for table in tables.tables):
                raise RuntimeError(f"The tables of {tables.owner} differ from their capacity.")
            if len(mine) != tables.num_held:
                raise RuntimeError(f"{tables.owner} holds {len(mine)}, counts {tables.num_held}.")
            held.update(mine)
        free = self._pool.free_blocks()
        if len(free) != self._pool.num_free or len(set(free)) != len(free):
            raise RuntimeError(f"{len(free)} blocks in the free list, {self._pool.num_free} free.")
        if len(free) + len(held) != self.num_blocks:
            raise RuntimeError(f"{len(free)} free + {len(held)} held is not {self.num_blocks}.")
        for block, count in enumerate(self._pool.ref_counts):
            if count != held[block]:
                raise RuntimeError(f"Block {block} has {held[block]} holders but counts {count}.")
            if count > 1 and block not in self._cache.key_of:
                raise RuntimeError(f"Block {block} is shared but not in the prefix cache.")
        self._cache.check()
