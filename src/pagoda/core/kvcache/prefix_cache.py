"""Where the KV of a hashed block lies."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pagoda.core.kvcache.spec import KVGroupSpec

# Hashes of evicted blocks that are remembered, to tell what was forgotten from what is new: 3 MB.
_MAX_EVICTED = 1 << 15


class PrefixCache:
    """Maps block hashes to blocks, per KV group. The pool decides what is evicted when."""

    def __init__(self, groups: Sequence[KVGroupSpec]):
        self._groups = groups
        self._block_of: list[dict[bytes, int]] = [{} for _ in groups]
        self.key_of: dict[int, tuple[int, bytes]] = {}
        """Cached block -> (group, hash)."""
        self._evicted: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, group: int, block_hash: bytes, block: int) -> None:
        """Remember a block; where another block already has this content, that one stays."""
        if self._block_of[group].setdefault(block_hash, block) == block:
            self.key_of[block] = (group, block_hash)

    def has(self, group: int, block_hash: bytes) -> bool:
        return block_hash in self._block_of[group]

    def evict(self, blocks: Iterable[int]) -> None:
        """Forget what the blocks held; blocks that are not cached are fine."""
        for block in blocks:
            key = self.key_of.pop(block, None)
            if key is not None:
                group, block_hash = key
                del self._block_of[group][block_hash]
                self._evicted[block_hash] = None
                if len(self._evicted) > _MAX_EVICTED:
                    self._evicted.popitem(last=False)

    def was_evicted(self, block_hash: bytes) -> bool:
        """Whether a block of that content was here not long ago."""
        return block_hash in self._evicted

    def match(self, hashes: Sequence[bytes], max_blocks: int) -> tuple[int, list[list[int]]]:
        """The longest prefix that all groups can continue from: (blocks, table per group).

        A sliding group needs only the blocks that the next query's window reaches into; the
        earlier ones are null. Shortening the prefix for one sliding group can move another's
        window onto a missing block, hence the outer loop.
        """
        count = min(len(hashes), max_blocks)
        for group, spec in enumerate(self._groups):
            if spec.window is None:
                count = self._longest_run(group, hashes, count)
        previous = -1
        while count != previous:
            previous = count
            for group, spec in enumerate(self._groups):
                if spec.window is not None:
                    count = self._longest_window(group, hashes, count)
        return count, [self._table(group, hashes, count) for group in range(len(self._groups))]

    def _window_blocks(self, group: int, count: int) -> int:
        """Of a prefix of `count` blocks, how many at its end the next query reads."""
        spec = self._groups[group]
        if spec.window is None:
            return count
        return min(count, -(-(spec.window - 1) // spec.block_size))

    def _longest_run(self, group: int, hashes: Sequence[bytes], count: int) -> int:
        block_of = self._block_of[group]
        for index in range(count):
            if hashes[index] not in block_of:
                return index
        return count

    def _longest_window(self, group: int, hashes: Sequence[bytes], count: int) -> int:
        block_of = self._block_of[group]
        index = count
        while count - index < self._window_blocks(group, count):
            index -= 1
            if hashes[index] not in block_of:
                count = index
        return count

    def _table(self, group: int, hashes: Sequence[bytes], count: int) -> list[int]:
        block_of = self._block_of[group]
        skipped = count - self._window_blocks(group, count)
        return [0] * skipped + [block_of[hashes[index]] for index in range(skipped, count)]

    def check(self) -> None:
        """RuntimeError where the two directions of the map disagree."""
        entries = sum(len(blocks) for blocks in self._block_of)
        if entries != len(self.key_of):
            raise RuntimeError(f"{entries} hashes name {len(self.key_of)} cached blocks.")
        for block, (group, block_hash) in self.key_of.items():
            if self._block_of[group].get(block_hash) != block:
                raise RuntimeError(f"Cached block {block} is not the one its hash names.")
