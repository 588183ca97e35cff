"""Where the KV of a hashed block lies."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pagoda.core.kvcache.block_pool import NULL_BLOCK
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec, StateGroupSpec
from pagoda.core.kvcache.watcher import TierWatcher

# Hashes of evicted blocks that are remembered, to tell what was forgotten from what is new: 3 MB.
_MAX_EVICTED = 1 << 15


class Match(NamedTuple):
    """A cached prefix."""

    num_blocks: int
    tables: list[list[int]]
    """Blocks of each group; null where nothing of it will be read, and where the block is
    elsewhere. Of a recurrent group all but the last are."""
    num_attended: int
    """How far attention alone could have gone: where states ought to have been kept."""
    elsewhere: list[tuple[int, int]]
    """Group and place of the blocks that are in another memory."""


class PrefixCache:
    """Maps block hashes to blocks, per group. The pools decide what is evicted when."""

    def __init__(self, groups: Sequence[GroupSpec]):
        self._groups = groups
        self._block_of: list[dict[bytes, int]] = [{} for _ in groups]
        self.hash_of: list[dict[int, bytes]] = [{} for _ in groups]
        """Hashes of each group's cached blocks."""
        self.from_disk: set[bytes] = set()
        """Hashes of blocks that came from disk, and were not computed since."""
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self.on_evict: Callable[[int, bytes, int], object] = lambda group, block_hash, block: None
        """Told of each block that is evicted, while it still holds its content."""
        self.is_elsewhere: Callable[[int, bytes], bool] = lambda group, block_hash: False
        """Whether a block of a group can be fetched from another memory."""
        self.watcher: TierWatcher | None = None

    def insert(self, group: int, block_hash: bytes, block: int) -> None:
        """Remember a block; where another block already has this content, that one stays."""
        is_new = block_hash not in self._block_of[group]
        if self._block_of[group].setdefault(block_hash, block) == block:
            self.hash_of[group][block] = block_hash
            self.from_disk.discard(block_hash)
            if is_new and self.watcher is not None:
                self.watcher.stored(group, block_hash)

    def has(self, group: int, block_hash: bytes) -> bool:
        return block_hash in self._block_of[group]

    def block_of(self, group: int, block_hash: bytes) -> int | None:
        return self._block_of[group].get(block_hash)

    def evict(self, group: int, blocks: Iterable[int], *, worthless: bool = False) -> None:
        """Forget what the blocks held; blocks that are not cached are fine. What is `worthless`
        is kept nowhere else."""
        for block in blocks:
            block_hash = self.hash_of[group].pop(block, None)
            if block_hash is not None:
                del self._block_of[group][block_hash]
                if not worthless:
                    self.on_evict(group, block_hash, block)
                if self.watcher is not None:
                    self.watcher.removed(group, block_hash)
                self._evicted[block_hash] = None
                if len(self._evicted) > _MAX_EVICTED:
                    self._evicted.popitem(last=False)

    def was_evicted(self, block_hash: bytes) -> bool:
        """Whether a block of that content was here not long ago."""
        return block_hash in self._evicted

    def match(self, hashes: Sequence[bytes], max_blocks: int) -> Match:
        """The longest prefix that all groups can continue from.

        A sliding group needs only the blocks that the next query's window reaches into, a
        recurrent one only the state at the end; what lies before is null. Shortening the prefix
        for one of these can move another onto a missing block, hence the outer loop.
        """
        count = min(len(hashes), max_blocks)
        for group, spec in enumerate(self._groups):
            if isinstance(spec, KVGroupSpec) and spec.window is None:
                count = self._longest_run(group, hashes, count)
        attended, previous = count, -1
        while count != previous:
            previous = count
            for group, spec in enumerate(self._groups):
                if isinstance(spec, StateGroupSpec):
                    count = self._last_state(group, hashes, count)
                elif spec.window is not None:
                    count = self._longest_window(group, hashes, count)
        tables, elsewhere = [], list[tuple[int, int]]()
        for group, block_of in enumerate(self._block_of):
            skipped = count - self._num_read(group, count)
            read = [block_of.get(hashes[index], NULL_BLOCK) for index in range(skipped, count)]
            tables.append([NULL_BLOCK] * skipped + read)
            elsewhere += [
                (group, skipped + place) for place, block in enumerate(read) if block == NULL_BLOCK
            ]
        return Match(count, tables, attended, elsewhere)

    def _num_read(self, group: int, count: int) -> int:
        """How many blocks at the end of a prefix of `count` blocks the next query reads."""
        spec = self._groups[group]
        if isinstance(spec, StateGroupSpec):
            return min(count, 1)
        if spec.window is None:
            return count
        return min(count, -(-(spec.window - 1) // spec.block_size))

    def _longest_run(self, group: int, hashes: Sequence[bytes], count: int) -> int:
        for index in range(count):
            if not self._is_found(group, hashes[index]):
                return index
        return count

    def _longest_window(self, group: int, hashes: Sequence[bytes], count: int) -> int:
        index = count
        while count - index < self._num_read(group, count):
            index -= 1
            if not self._is_found(group, hashes[index]):
                count = index
        return count

    def _last_state(self, group: int, hashes: Sequence[bytes], count: int) -> int:
        while count and not self._is_found(group, hashes[count - 1]):
            count -= 1
        return count

    def _is_found(self, group: int, block_hash: bytes) -> bool:
        return block_hash in self._block_of[group] or self.is_elsewhere(group, block_hash)

    def check(self) -> None:
        """RuntimeError where the two directions of the map disagree."""
        for group, (block_of, hash_of) in enumerate(zip(self._block_of, self.hash_of, strict=True)):
            if len(block_of) != len(hash_of):
                raise RuntimeError(f"{len(block_of)} hashes name {len(hash_of)} cached blocks.")
            for block, block_hash in hash_of.items():
                if block_of.get(block_hash) != block:
                    raise RuntimeError(f"Cached block {block} of group {group} is misnamed.")
