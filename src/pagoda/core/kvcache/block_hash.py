"""Chained hashes that name the content of full KV blocks."""

import json
from array import array
from collections.abc import Sequence
from hashlib import sha256

from pagoda.core.messages import AddRequest, MediaItem

MAX_TOKEN_ID = 2**31 - 1
"""Token ids are hashed as 32-bit integers."""

_TOKEN_BYTES = 4


class BlockHashes:
    """The hashes of one request's full blocks, extended as its tokens become known.

    A block's hash is H(hash of the block before, its token ids, its media), and the first
    parent is H(salt, adapter): equal hashes mean equal KV. SHA-256 in full, because a collision
    that somebody can construct would show them another user's prompt. A media item counts with
    its content's hash and its distance from the block's start.
    """

    def __init__(
        self,
        block_size: int,
        *,
        salt: str | None = None,
        adapter: str | None = None,
        media: Sequence[MediaItem] = (),
    ):
        self._block_size = block_size
        self._parent = _PLAIN if salt is adapter is None else _first_parent(salt, adapter)
        self._media = media
        self.hashes: list[bytes] = []

    @classmethod
    def of(cls, request: AddRequest, block_size: int) -> "BlockHashes":
        return cls(
            block_size, salt=request.cache_salt, adapter=request.adapter, media=request.media
        )

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Hashes of at least the first `num_blocks` blocks of `token_ids`, as one shared list.

        Earlier tokens must not have changed since the last call. 4,096 tokens take about 0.3 ms.
        """
        hashes, size = self.hashes, self._block_size
        first = len(hashes)
        if num_blocks <= first:
            return hashes
        data = array("i", token_ids[first * size : num_blocks * size]).tobytes()
        step = size * _TOKEN_BYTES
        parent = self._parent
        for index in range(num_blocks - first):
            content = parent + data[index * step : (index + 1) * step]
            if self._media:
                content += self._media_key(first + index)
            parent = sha256(content).digest()
            hashes.append(parent)
        self._parent = parent
        return hashes

    def _media_key(self, block: int) -> bytes:
        start = block * self._block_size
        end = start + self._block_size
        inside = [
            (item.content_hash, item.start - start, item.seconds_on)
            for item in self._media
            if item.start < end and item.start + item.length > start
        ]
        return _encode(inside) if inside else b""


def _first_parent(salt: str | None, adapter: str | None) -> bytes:
    return sha256(_encode((salt, adapter))).digest()


def _encode(value: object) -> bytes:
    """JSON in ASCII: one form per value, and lone surrogates in a client's salt are no error."""
    return json.dumps(value).encode()


_PLAIN = _first_parent(None, None)
