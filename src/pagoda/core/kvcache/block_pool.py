"""Who holds which of a group's blocks: reference counts, and the free blocks in order of reuse."""

from collections.abc import Container, Iterable, Sequence

NULL_BLOCK = 0
"""Stands in block tables for positions that nobody reads; never allocated."""


class BlockPool:
    """Blocks with ids below `num_ids`, as far as they were granted. O(1) per block.

    Free blocks form a doubly linked list over two arrays, with the null block as its head. Its
    front is reused first; blocks whose content may still be wanted go to its end.
    """

    def __init__(self, num_ids: int):
        self.ref_counts = [0] * num_ids
        self._next = [NULL_BLOCK] * num_ids
        self._prev = [NULL_BLOCK] * num_ids
        self.num_free = 0

    @property
    def front(self) -> int:
        """The free block that is reused next; the null block where none is free."""
        return self._next[NULL_BLOCK] if self._next else NULL_BLOCK

    def grant(self, blocks: range) -> None:
        """Blocks that are free from now on, the first of them reused next."""
        for block in reversed(blocks):
            self._insert(NULL_BLOCK, block)

    def withdraw(self, blocks: range) -> None:
        """Take free blocks back."""
        for block in blocks:
            self._unlink(block)

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
                self._unlink(block)
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
                self._insert(self._prev[NULL_BLOCK] if block in cached else NULL_BLOCK, block)

    def reuse_next(self, block: int) -> None:
        """Move a free block to the front: nobody wants what it holds."""
        self._unlink(block)
        self._insert(NULL_BLOCK, block)

    def reuse_first(self, blocks: Sequence[int], cached: Container[int]) -> None:
        """Move free blocks, in their order, before all others that are in `cached`."""
        place = NULL_BLOCK
        while self._next[place] != NULL_BLOCK and self._next[place] not in cached:
            place = self._next[place]
        for block in blocks:
            self._unlink(block)
            self._insert(place, block)
            place = block

    def free_blocks(self) -> list[int]:
        """The free blocks, next to be reused first."""
        blocks: list[int] = []
        block = self.front
        while block != NULL_BLOCK and len(blocks) <= len(self._next):
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _insert(self, before: int, block: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.num_free += 1

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free -= 1
