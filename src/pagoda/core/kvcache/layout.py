"""How blocks of several sizes share one piece of memory."""

from collections.abc import Sequence

from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec, StateGroupSpec

# Of a slab, at most so much may stay unused by a group whose blocks do not divide it.
_MOST_LOSS = 1 / 16
_MOST_BLOCKS = 16


class SlabLayout:
    """`num_slabs` equal slabs, one behind the other. Each belongs to one group at a time.

    Every group numbers its blocks from the start of the memory: block b lies at b * block_bytes,
    so a block's address is linear in its id whoever held the slab before. A slab gives its group
    the blocks that lie wholly inside it. Block 0 of attention groups stands for positions that
    nobody reads and may be written to; it belongs to nobody.
    """

    def __init__(self, groups: Sequence[GroupSpec], num_slabs: int):
        self.block_bytes = [group.block_bytes for group in groups]
        self.slab_bytes = slab_bytes(groups)
        self.num_slabs = num_slabs
        sizes = [group.block_bytes for group in groups if isinstance(group, KVGroupSpec)]
        self._null_bytes = max(sizes, default=0)

    @property
    def num_whole(self) -> int:
        """Slabs that can be given out whole: the first one holds the null block."""
        return max(0, self.num_slabs - 1)

    @property
    def nbytes(self) -> int:
        return self.num_slabs * self.slab_bytes

    def num_ids(self, group: int) -> int:
        """One more than the group's largest block id."""
        return self.nbytes // self.block_bytes[group]

    def blocks_of(self, group: int, slab: int) -> range:
        """The blocks that a slab gives to a group; may be none."""
        size, start = self.block_bytes[group], slab * self.slab_bytes
        first = max(1, -(-max(start, self._null_bytes) // size))
        return range(first, max(first, (start + self.slab_bytes) // size))

    def slab_of(self, group: int, block: int) -> int:
        return block * self.block_bytes[group] // self.slab_bytes

    def slabs_for(self, num_blocks: Sequence[int]) -> int:
        """Slabs that hold so many blocks of each group, wherever they lie."""
        return sum(
            -(-count // _least_blocks(self.slab_bytes, size))
            for count, size in zip(num_blocks, self.block_bytes, strict=True)
        )


def blocks_required(groups: Sequence[GroupSpec], num_tokens: int, max_chunk: int) -> list[int]:
    """The most blocks of each group that a request holds while `num_tokens` tokens are computed,
    `max_chunk` a step.

    A sliding group gives blocks back in `KVCacheManager.advance`, at every block's end and when a
    step's result is in. Meanwhile the next step may be planned, so two chunks lie past the window.
    A recurrent group reads one state and writes another.
    """
    required = []
    for group in groups:
        if isinstance(group, StateGroupSpec):
            required.append(2)
            continue
        blocks = -(-num_tokens // group.block_size)
        if group.window is not None:
            blocks = min(blocks, (group.window + 2 * max_chunk) // group.block_size + 3)
        required.append(blocks)
    return required


def slab_bytes(groups: Sequence[GroupSpec]) -> int:
    """The largest block, or as few of them as leave no group's blocks much waste."""
    sizes = {group.block_bytes for group in groups}
    if not sizes:
        return 1
    losses = {
        count * max(sizes): _loss(count * max(sizes), sizes) for count in range(1, _MOST_BLOCKS + 1)
    }
    good = [size for size, loss in losses.items() if loss <= _MOST_LOSS]
    return min(good) if good else min(losses, key=lambda size: losses[size])


def _loss(slab: int, sizes: set[int]) -> float:
    return max(1 - _least_blocks(slab, size) * size / slab for size in sizes)


def _least_blocks(slab: int, size: int) -> int:
    """Whole blocks inside any slab: one less where slabs do not begin at a block."""
    return slab // size if slab % size == 0 else max(0, slab // size - 1)
