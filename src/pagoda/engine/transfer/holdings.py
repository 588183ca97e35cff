"""The contents of a prefix cache, as texts that another engine can fetch."""

from collections.abc import Container

from pagoda.core.kvcache.hit import CachedBlock
from pagoda.core.kvcache.manager import KVCacheManager

# What is known of blocks that are gone is forgotten once it is the greater part, and no small one.
_LEAST_KNOWN = 1 << 12


class Holdings:
    """Knows which block stands before which, as the cache itself does not."""

    def __init__(self, cache: KVCacheManager):
        self._cache = cache
        self._parents: dict[bytes, bytes] = {}
        self._most_known = _LEAST_KNOWN
        cache.on_cached.append(self._note)

    def hottest(self, most_bytes: int, most_hashes: int) -> list[list[bytes]]:
        """Texts by the hashes of their blocks, from the first on, in the order in which they are
        worth having: what would be evicted last comes first. Their blocks have at most so many
        bytes together, those that several share counted once; `most_hashes` bounds the lists.
        """
        chosen: dict[bytes, None] = {}
        for block in self._cache.cached_blocks():
            line = self._line(block.hash, chosen)
            most_bytes -= sum(map(self._nbytes, line))
            if most_bytes < 0:
                break
            chosen.update(dict.fromkeys(reversed(line)))
        texts: list[list[bytes]] = []
        inner = {self._parents.get(each, b"") for each in chosen}
        for block_hash in (each for each in chosen if each not in inner):
            text = self._line(block_hash, ())[::-1]
            hit = self._cache.match_prefix(text, len(text) * self._cache.block_size)
            del text[hit.num_tokens // self._cache.block_size :]
            most_hashes -= len(text)
            if most_hashes < 0:
                break
            if text and not hit.in_host:
                texts.append(text)
        return texts

    def _note(self, block: CachedBlock, parent: bytes) -> None:
        self._parents[block.hash] = parent
        if len(self._parents) > self._most_known:
            self._forget()

    def _forget(self) -> None:
        """All but cached blocks and what stands before them."""
        kept: dict[bytes, None] = {}
        for block in self._cache.cached_blocks():
            kept.update(dict.fromkeys(self._line(block.hash, kept)))
        self._parents = {each: self._parents[each] for each in kept if each in self._parents}
        self._most_known = max(_LEAST_KNOWN, 2 * len(self._parents))

    def _line(self, block_hash: bytes, known: Container[bytes]) -> list[bytes]:
        """A block and those before it in its text, as far as they are not known; the last first."""
        line: list[bytes] = []
        while block_hash and block_hash not in known:
            line.append(block_hash)
            block_hash = self._parents.get(block_hash, b"")
        return line

    def _nbytes(self, block_hash: bytes) -> int:
        sizes = enumerate(self._cache.layout.block_bytes)
        return sum(size for at, size in sizes if self._cache.find(at, block_hash) is not None)
