"""Who is told what the prefix cache holds."""

from collections.abc import Sequence
from typing import Protocol


class TierWatcher(Protocol):
    """Told of one memory's blocks."""

    def stored(self, group: int, block_hash: bytes) -> None:
        """A block can be found from now on."""

    def removed(self, group: int, block_hash: bytes) -> None:
        """It cannot any more."""


class HostWatcher(TierWatcher, Protocol):
    """Told of those in the host's memory, to which blocks of the pool are copied."""

    def coming(self, group: int, block_hash: bytes) -> None:
        """A block is being copied, and the pool forgets it."""

    def came(self, group: int, block_hash: bytes) -> None:
        """That has ended; where it ended well, `stored` was told before."""


class CacheWatcher(Protocol):
    """Told of all that a cache holds. Blocks are known by hashes; whose text they are part of is
    told apart from that, for those from disk are in the cache before anybody knows their text."""

    pool: TierWatcher
    host: HostWatcher

    def name(self, owner: str, hashes: Sequence[bytes], index: int) -> None:
        """The block with hash `hashes[index]` is the one at that place in the owner's text."""

    def cleared(self) -> None:
        """Everything is forgotten; told after the blocks themselves were."""
