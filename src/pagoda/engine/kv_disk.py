"""Cached prefixes that outlive the engine: a file per model, written when the engine stops and read
when it starts.

The file: blocks one after the other, then their index as msgpack, the index's CRC-32 and length (4
and 8 bytes, little endian) and MAGIC. Blocks are named by the hash of their tokens (and of the
salt before them); the file is named by a hash of the model and of all that its KV depends on.
"""

import hashlib
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import remove_partials, whole_file
from pagoda.core.kvcache.manager import CachedBlock, KVCacheManager
from pagoda.core.kvcache.spec import KVLayout
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.files import ModelFiles

log = get_logger(__name__)

MAGIC = b"PAGODAK2"
_LENGTH_BYTES = 8
_CHECK_BYTES = 4
# Blocks copied at once: some MB, whatever the model.
_CHUNK = 64
# Of each weight file so many pieces are hashed, beside its size: reading all of it takes as long
# as loading it.
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14
_MAX_INDEX = 1 << 28

Bytes = npt.NDArray[np.uint8]


class BlockStore(Protocol):
    """What holds the blocks' bytes: `runtime.runner.ModelRunner`."""

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one of the group's blocks]."""

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None: ...


class _Index(msgspec.Struct):
    block_bytes: list[int]
    """Bytes of a block of each group."""
    groups: list[int]
    hashes: list[bytes]
    checksums: list[int]
    """CRC-32 of each block."""


@dataclass(frozen=True)
class KvDisk:
    """Where and how much. `path` is the model's file, of at most `max_bytes`, in a folder that is
    kept to as much."""

    path: Path
    max_bytes: int

    def save(self, cache: KVCacheManager, store: BlockStore) -> int:
        """Write the cached blocks, the most useful ones first; how many."""
        blocks = _first_bytes(cache.cached_blocks(), store, self.max_bytes)
        if not blocks:
            return 0
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        index = _Index([], [], [], [])
        with whole_file(self.path, 0o600) as file:
            for chunk in _chunks(blocks):
                data = store.read_blocks(chunk[0].group, [one.block for one in chunk])
                file.write(data.tobytes())
                index.groups += [one.group for one in chunk]
                index.hashes += [one.hash for one in chunk]
                index.checksums += [zlib.crc32(row) for row in data]
            index.block_bytes = [
                store.read_blocks(group, []).shape[1] for group in range(len(cache.groups))
            ]
            file.write(_encoded(index))
        _trim(self.path.parent, self.path, self.max_bytes)
        log.info("Kept %d cached blocks in %s.", len(blocks), self.path)
        return len(blocks)

    def restore(self, cache: KVCacheManager, store: BlockStore) -> int:
        """Put the blocks of the file into the prefix cache, as far as there is room; how many.

        A file that is damaged, or of another layout, is passed over and said so; without memory to
        copy the blocks none is taken.
        """
        try:
            data = np.memmap(self.path, np.uint8, "r")
        except (FileNotFoundError, ValueError):  # none yet, or an empty one
            return 0
        except OSError as error:
            log.warning("The kept KV blocks cannot be read: %s.", error)
            return 0
        try:
            index, starts = _read_index(data)
            sizes = [store.read_blocks(group, []).shape[1] for group in range(len(cache.groups))]
            if index.block_bytes != sizes:
                raise ValueError("its blocks have other sizes")
            return _adopt_all(data, index, starts, cache, store)
        except MemoryError:
            # A block that was taken may not have its bytes yet.
            cache.reset_prefix_cache()
            log.warning("The kept KV blocks are not used: there is no memory to copy them.")
            return 0
        except (ValueError, msgspec.MsgspecError) as error:
            log.warning("The kept KV blocks in %s are not used: %s.", self.path, error)
            return 0


def block_contents(model: ResolvedModel, kv_dtype: str, layout: KVLayout, kernels: str) -> str:
    """What the bytes of a model's blocks depend on beside its files; `kernels`: who computes."""
    return repr((model.dtype, model.quantization, kv_dtype, layout, kernels))


def kv_disk(folder: str, max_bytes: int, contents: str, *models: ModelFiles) -> KvDisk:
    """The file of a model, and of the one that drafts for it. `contents` as `block_contents` has
    it.

    Raises ConfigError for a folder that cannot be used.
    """
    digest = hashlib.sha256(f"{MAGIC!r} {contents}".encode())
    for files in models:
        for path in files.weight_paths():
            _sample(path, digest.update)
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"--kv-disk {folder} cannot be a folder: {error.strerror}.") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--kv-disk {folder} cannot be written to.")
    remove_partials(path)
    return KvDisk(path / f"{digest.hexdigest()[:32]}.kv", max_bytes)


def _sample(path: Path, update: Callable[[bytes], None]) -> None:
    size = path.stat().st_size
    update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            update(file.read(_SAMPLE_BYTES))


def _first_bytes(
    blocks: Iterable[CachedBlock], store: BlockStore, max_bytes: int
) -> list[CachedBlock]:
    kept, total = [], 0
    sizes: dict[int, int] = {}
    for one in blocks:
        size = sizes.setdefault(one.group, store.read_blocks(one.group, []).shape[1])
        total += size
        if total > max_bytes:
            break
        kept.append(one)
    return kept


def _chunks(blocks: Sequence[CachedBlock]) -> Iterable[list[CachedBlock]]:
    """Runs of blocks of one group."""
    chunk: list[CachedBlock] = []
    for one in blocks:
        if chunk and (one.group != chunk[0].group or len(chunk) == _CHUNK):
            yield chunk
            chunk = []
        chunk.append(one)
    if chunk:
        yield chunk


def _encoded(index: _Index) -> bytes:
    """The end of the file."""
    encoded = msgspec.msgpack.encode(index)
    check = zlib.crc32(encoded).to_bytes(_CHECK_BYTES, "little")
    return encoded + check + len(encoded).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def _read_index(data: Bytes) -> tuple[_Index, list[int]]:
    """The index, and where each block begins. Raises ValueError for a damaged file."""
    tail = len(MAGIC) + _LENGTH_BYTES + _CHECK_BYTES
    if len(data) < tail or data[-len(MAGIC) :].tobytes() != MAGIC:
        raise ValueError("it is not whole")
    ending = data[-tail:].tobytes()
    length = int.from_bytes(ending[_CHECK_BYTES : -len(MAGIC)], "little")
    if length > min(_MAX_INDEX, len(data) - tail):
        raise ValueError("its index is longer than the file")
    encoded = data[-tail - length : -tail].tobytes()
    if zlib.crc32(encoded) != int.from_bytes(ending[:_CHECK_BYTES], "little"):
        raise ValueError("its index is damaged")
    index = msgspec.msgpack.decode(encoded, type=_Index)
    count = len(index.hashes)
    if len(index.groups) != count or len(index.checksums) != count:
        raise ValueError("its index does not add up")
    if any(not 0 <= group < len(index.block_bytes) for group in index.groups):
        raise ValueError("its index does not add up")
    starts = [0]
    for group in index.groups:
        starts.append(starts[-1] + index.block_bytes[group])
    if starts[-1] != len(data) - tail - length:
        raise ValueError("its length is not that of its blocks")
    return index, starts


def _adopt_all(
    data: Bytes, index: _Index, starts: list[int], cache: KVCacheManager, store: BlockStore
) -> int:
    """The most useful blocks come first in the file and last here: they are evicted last."""
    sizes = accumulate(cache.layout.block_bytes[group] for group in index.groups)
    room = bisect_right(list(sizes), cache.free_bytes)
    adopted = 0
    for number in reversed(range(room)):
        raw = data[starts[number] : starts[number + 1]]
        if zlib.crc32(raw.tobytes()) != index.checksums[number]:
            continue
        group = index.groups[number]
        block = cache.adopt(group, index.hashes[number])
        if block is not None:
            store.write_blocks(group, [block], raw[None])
            adopted += 1
    if adopted < len(index.hashes):
        log.info("%d of %d kept KV blocks were taken.", adopted, len(index.hashes))
    return adopted


def _trim(folder: Path, kept: Path, max_bytes: int) -> None:
    """Remove the files of other models, the oldest first, until all fit."""
    files = sorted(folder.glob("*.kv"), key=lambda path: path.stat().st_mtime)
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total <= max_bytes:
            return
        if path != kept:
            total -= path.stat().st_size
            path.unlink(missing_ok=True)
            log.info("Removed the KV blocks of another model (%s).", format_bytes(max_bytes))
