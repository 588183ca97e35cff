"""Who holds which KV block: reference counts, and the free blocks in order of reuse."""

from collections.abc import Container, Iterable

NULL_BLOCK = 0
"""Stands in block tables for positions that nobody reads; never allocated, never written."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1. Every operation is O(1) per block.

    Free blocks form a doubly linked list over two arrays, with the null block as its head. Its
    front is reused first; blocks whose content may still be wanted go to its end.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self.num_free = num_blocks - 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; there must be as many free ones."""
        following, refs = self._next, self.ref_counts
        blocks = []
        block = following[NULL_BLOCK]
        for _ in range(count):
            blocks.append(block)
            refs[block] = 1
            block = following[block]
        following[NULL_BLOCK] = block
        self._prev[block] = NULL_BLOCK
        self.num_free -= count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each block, free ones included; null blocks are passed over."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self.ref_counts[block] == 0:
                before, after = self._prev[block], self._next[block]
                self._next[before] = after
                self._prev[after] = before
                self.num_free -= 1
            self.ref_counts[block] += 1

    def release(self, blocks: Iterable[int], cached: Container[int]) -> None:
        """One holder less for each block; null blocks are passed over.

        A block without holders is reused last if it is in `cached`, else next.
        """
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                before = self._prev[NULL_BLOCK] if block in cached else NULL_BLOCK
                after = self._next[before]
                self._next[before] = self._prev[after] = block
                self._prev[block], self._next[block] = before, after
                self.num_free += 1

    def free_blocks(self) -> list[int]:
        """The free blocks, next to be reused first; for checks."""
        blocks: list[int] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK and len(blocks) <= self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks
