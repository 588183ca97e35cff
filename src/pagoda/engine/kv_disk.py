"""Cached prefixes that outlive the engine: written while it serves, read when it starts.

Blocks are named by the hash of their tokens (and of the salt before them); a model's files by a
hash of the model and of all that its KV depends on.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, Protocol

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.core.kvcache.hit import CachedBlock
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec, KVLayout
from pagoda.engine.kv_journal import MAGIC, Bytes, Entry, Journal
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.files import ModelFiles
from pagoda.weights.identity import add_identity

log = get_logger(__name__)

# Blocks copied at once: some MB, whatever the model.
_CHUNK = 64
# While requests run, blocks are copied once so many bytes or blocks wait, and at most so many bytes
# between two steps: on a GPU a copy waits for the step before.
_LEAST_BYTES, _MANY, _MOST_BYTES = 4 << 20, 256, 32 << 20
# States and windows are written once so many steps have passed: most make room for the next ones of
# their reply before.
_SETTLED_STEPS = 256
_MOST_WAITING = 1 << 16
_NO_PARENT = bytes(32)


class BlockStore(Protocol):
    """What holds the blocks' bytes: `runtime.runner.ModelRunner`."""

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        """uint8 [blocks, bytes of one of the group's blocks]."""

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None: ...


@dataclass(frozen=True)
class KvDisk:
    """Where and how much: files whose names begin as `stem`, in a folder that is kept to
    `max_bytes`."""

    stem: Path
    max_bytes: int

    def open(self, cache: KVCacheManager, store: BlockStore) -> "KeptPrefixes":
        return KeptPrefixes(Journal(self.stem, self.max_bytes), cache, store)


class _Waiting(NamedTuple):
    step: int
    block: CachedBlock
    parent: bytes


class KeptPrefixes:
    """The link between a prefix cache and its files."""

    def __init__(self, journal: Journal, cache: KVCacheManager, store: BlockStore):
        self._journal, self._cache, self._store = journal, cache, store
        self._sizes = [store.read_blocks(group, []).shape[1] for group in range(len(cache.groups))]
        self._settled: deque[_Waiting] = deque(maxlen=_MOST_WAITING)
        """Blocks to write, of layers that keep all of a text."""
        self._unsettled: deque[_Waiting] = deque(maxlen=_MOST_WAITING)
        """Those of others."""
        self._step = 0
        cache.on_cached.append(self._note)

    def restored(self) -> str:
        """As `restore`: a line for the log that says what came of it."""
        count, found = self.restore(), self._journal.num_known
        folder, used, most = self._journal.usage()
        return (
            f"KV on disk: {folder} holds {format_bytes(used)} of at most {format_bytes(most)}, "
            f"{found:,} blocks of this model; {count:,} of them are back in the cache."
        )

    def restore(self) -> int:
        """Put blocks into the prefix cache, those written last and what stands before them, as far
        as there is room; how many. Blocks that are damaged are passed over; without memory to copy
        them none is taken."""
        try:
            return self._adopt(self._chosen(self._journal.read()))
        except MemoryError:
            # A block that was taken may not have its bytes yet.
            self._cache.reset_prefix_cache()
            log.warning("The kept KV blocks are not used: there is no memory to copy them.")
            return 0

    def write_back(self, idle: bool) -> bool:
        """Copy blocks that were cached since for the disk, some MB at a time; whether more wait.
        Called between steps."""
        self._step += not idle
        while self._unsettled and (idle or self._is_old(self._unsettled[0])):
            self._settled.append(self._unsettled.popleft())
        if not self._settled or not self._journal.has_room:
            return False
        first = islice(self._settled, _MANY)
        if not idle and len(self._settled) < _MANY and self._nbytes(first) < _LEAST_BYTES:
            return False
        taken, nbytes = [], 0
        while self._settled and nbytes < _MOST_BYTES:
            one = self._settled.popleft()
            nbytes += self._sizes[one.block.group]
            taken.append(one)
        try:
            self._put(taken)
        except MemoryError:
            log.debug("There was no memory to copy %d blocks for the disk.", len(taken))
        return bool(self._settled)

    def close(self) -> None:
        """Write what is not written yet, and wait until it is."""
        self._cache.on_cached.remove(self._note)
        self._settled += self._unsettled
        self._unsettled.clear()
        while self._settled and not self._journal.is_broken:
            self.write_back(True)
            self._journal.wait_for_room()
        self._journal.close()

    def _nbytes(self, waiting: Iterable[_Waiting]) -> int:
        return sum(self._sizes[one.block.group] for one in waiting)

    def _is_old(self, one: _Waiting) -> bool:
        return one.step + _SETTLED_STEPS <= self._step

    def _note(self, block: CachedBlock, parent: bytes) -> None:
        if self._journal.is_broken or self._journal.has(block.group, block.hash):
            return
        spec = self._cache.groups[block.group]
        keeps_all = isinstance(spec, KVGroupSpec) and spec.window is None
        waiting = self._settled if keeps_all else self._unsettled
        waiting.append(_Waiting(self._step, block, parent or _NO_PARENT))

    def _put(self, waiting: Sequence[_Waiting]) -> None:
        good = [
            one
            for one in waiting
            if self._cache.is_worth_keeping(one.block)
            and not self._journal.has(one.block.group, one.block.hash)
        ]
        for group, mine in groupby(good, key=lambda one: one.block.group):
            some = list(mine)
            for first in range(0, len(some), _CHUNK):
                chunk = some[first : first + _CHUNK]
                rows = self._store.read_blocks(group, [one.block.block for one in chunk])
                for one, row in zip(chunk, rows, strict=True):
                    self._journal.put(group, one.block.hash, one.parent, row)

    def _chosen(self, entries: Sequence[Entry]) -> list[Entry]:
        """What there is room for, the most useful first: the text that was written last, from its
        start on, and so forth."""
        by_hash: dict[bytes, list[Entry]] = {}
        for entry in entries:
            if entry.group < len(self._sizes) and len(entry.data) == self._sizes[entry.group]:
                by_hash.setdefault(entry.hash, []).append(entry)
        if entries and not by_hash:
            log.warning("The kept KV blocks are not used: they have other sizes.")
        room = self._cache.free_bytes
        chosen: list[Entry] = []
        while by_hash:
            chain, block_hash = [], next(reversed(by_hash))
            while block_hash in by_hash:
                chain.append(by_hash.pop(block_hash))
                block_hash = chain[-1][0].parent
            for entry in (entry for some in reversed(chain) for entry in some):
                room -= self._cache.layout.block_bytes[entry.group]
                if room < 0:
                    return chosen
                chosen.append(entry)
        return chosen

    def _adopt(self, chosen: Sequence[Entry]) -> int:
        """The most useful blocks last: they are evicted last."""
        adopted = 0
        for entry in reversed(chosen):
            if not entry.is_whole:
                continue
            parent = b"" if entry.parent == _NO_PARENT else entry.parent
            block = self._cache.adopt(entry.group, entry.hash, parent, from_disk=True)
            if block is not None:
                self._store.write_blocks(entry.group, [block], entry.data[None])
                adopted += 1
        return adopted


def block_contents(
    model: ResolvedModel,
    kv_dtype: str,
    layout: KVLayout,
    kernels: str,
    num_ranks: int = 1,
    cuts: tuple[int, ...] = (),
) -> str:
    """What the bytes of a model's blocks depend on beside its files; `kv_dtype`: their type, and
    what stands for its scales; `kernels`: who computes. A block of several ranks, `num_ranks` in
    each stage of a pipeline (as `StageSpec` has its `cuts`), has the part of each in turn."""
    contents = (model.dtype, model.quantization, kv_dtype, layout, kernels)
    if cuts:
        return repr((*contents, num_ranks, cuts))
    return repr(contents if num_ranks == 1 else (*contents, num_ranks))


def kv_disk(folder: str, max_bytes: int, contents: str, *models: ModelFiles) -> KvDisk:
    """Where the blocks of a model go, and of the one that drafts for it. `contents` as
    `block_contents` has it.

    Raises ConfigError for a folder that cannot be used.
    """
    digest = hashlib.sha256(f"{MAGIC!r} {contents}".encode())
    for files in models:
        for path in files.weight_paths():
            add_identity(path, digest.update)
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"--kv-disk {folder} cannot be a folder: {error.strerror}.") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--kv-disk {folder} cannot be written to.")
    return KvDisk(path / digest.hexdigest()[:32], max_bytes)
