"""Whether blocks, tables and the prefix cache add up."""

from collections import Counter
from collections.abc import Iterable

from pagoda.core.kvcache.block_pool import NULL_BLOCK
from pagoda.core.kvcache.pools import BlockPools
from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.tables import BlockTables


def check_blocks(
    tables: Iterable[BlockTables], block_size: int, pools: BlockPools, cache: PrefixCache
) -> None:
    """RuntimeError unless every block is either free or held as often as it is counted."""
    held: list[Counter[int]] = [Counter() for _ in pools.pools]
    for one in tables:
        _count(one, held)
        if any(len(table) * block_size != one.capacity for table in one.tables):
            raise RuntimeError(f"The tables of {one.owner} differ from their capacity.")
    for group, counts in enumerate(held):
        _check_group(group, counts, pools, cache)
    pools.check()
    cache.check()


def _count(tables: BlockTables, held: list[Counter[int]]) -> None:
    mine = [*tables.tables, tables.states][: len(held)]
    for group, blocks in enumerate(mine):
        present = [block for block in blocks if block != NULL_BLOCK]
        if len(present) != len(set(present)):
            raise RuntimeError(f"A block lies twice in the tables of {tables.owner}.")
        if len(present) != tables.held[group]:
            raise RuntimeError(f"{tables.owner} holds {present}, counts {tables.held}.")
        held[group].update(present)


def _check_group(group: int, held: Counter[int], pools: BlockPools, cache: PrefixCache) -> None:
    pool = pools.pools[group]
    free = pool.free_blocks()
    if len(free) != pool.num_free or len(set(free)) != len(free):
        raise RuntimeError(f"{len(free)} blocks in the free list, {pool.num_free} free.")
    if len(pools.pools) == 1 and len(free) + len(held) != pools.num_slabs:
        raise RuntimeError(f"{len(free)} free + {len(held)} held is not {pools.num_slabs}.")
    for block, count in enumerate(pool.ref_counts):
        if count != held[block]:
            raise RuntimeError(f"Block {block} has {held[block]} holders but counts {count}.")
        if count > 1 and block not in cache.hash_of[group]:
            raise RuntimeError(f"Block {block} is shared but not in the prefix cache.")
