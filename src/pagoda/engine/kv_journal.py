"""Blocks of a KV cache in files that are only ever appended to: whatever ends the process, what was
written before is there at the next start.

A segment: MAGIC, then records. A record: `_HEAD` (mark, group, bytes, CRC-32 of the block, its
hash, the hash of the block before it in its text), the CRC-32 of that, the block. A reader stops at
the first head that is damaged or cut off; blocks are checked when they are taken.

Each process writes segments of its own, so several may share a folder.
"""

import contextlib
import os
import secrets
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import sync_folder

log = get_logger(__name__)

MAGIC = b"PAGODAK3"
_HEAD = struct.Struct("<4sIII32s32s")
_CHECK = struct.Struct("<I")
_MARK = b"KVBL"
# A folder holds about so many segments: it is kept within its bound by removing the oldest ones.
_SEGMENTS = 8
# Copied blocks that wait for the disk, at most; beyond, blocks stay in the pool unwritten.
_MOST_QUEUED = 256 << 20

Bytes = npt.NDArray[np.uint8]


class Entry(NamedTuple):
    """A block in a segment."""

    group: int
    hash: bytes
    parent: bytes
    """The hash of the block before it; zeros for a text's first one."""
    check: int
    data: Bytes
    """The block's bytes, read when they are looked at."""

    @property
    def is_whole(self) -> bool:
        return zlib.crc32(self.data.tobytes()) == self.check


class Record(NamedTuple):
    """A block, as it is written."""

    key: tuple[int, bytes]
    head: bytes
    data: bytes


class Journal:
    """Appends blocks on a thread of its own, and reads what it and others left.

    Segments of a model lie beside each other as STEM-TIME-RANDOM.kv. A disk that is full, or any
    other error of it, ends the writing with one warning; whoever uses the cache notices nothing.
    """

    def __init__(self, stem: Path, max_bytes: int):
        self._stem, self._max_bytes = stem, max_bytes
        stem.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._segment_bytes = max(1, max_bytes // _SEGMENTS)
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._written = 0
        self._known: dict[tuple[int, bytes], Path | None] = {}
        """Blocks that are in a segment, or on their way; and in which."""
        self._queue: deque[Record] = deque()
        self._queued = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.is_broken = False

    def read(self) -> list[Entry]:
        """All blocks, in the order in which they were written."""
        entries = []
        for path in sorted(self._stem.parent.glob(f"{self._stem.name}-*.kv")):
            try:
                data = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError) as error:  # gone meanwhile, or empty
                log.debug("Kept KV blocks cannot be read: %s.", error)
                continue
            for entry in _entries(data):
                self._known[entry.group, entry.hash] = path
                entries.append(entry)
        return entries

    @property
    def num_known(self) -> int:
        """Blocks of this model that are in a file, or on their way."""
        return len(self._known)

    def usage(self) -> tuple[Path, int, int]:
        """The folder, bytes of all models' files in it, and how many there may be."""
        used = sum(size for _, size in self._segments().values())
        return self._stem.parent, used, self._max_bytes

    def has(self, group: int, block_hash: bytes) -> bool:
        return (group, block_hash) in self._known

    @property
    def has_room(self) -> bool:
        """Whether more can be queued now."""
        return self._queued < _MOST_QUEUED and not self.is_broken

    def wait_for_room(self) -> None:
        """Return once more can be queued, or never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_room or self.is_broken)

    def put(self, group: int, block_hash: bytes, parent: bytes, data: Bytes) -> None:
        """Queue a block; returns at once."""
        record = record_of(group, block_hash, parent, data)
        with self._changed:
            self._known[record.key] = None
            self._queue.append(record)
            self._queued += len(record.data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kv journal", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Return when all that is queued is written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                record = self._queue.popleft()
            self._append(record)
            with self._changed:
                self._queued -= len(record.data)
                self._changed.notify_all()
        self._sync()

    def _sync(self) -> None:
        """What was written by now outlives a power cut, too."""
        if self._file is None or self.is_broken:
            return
        try:
            os.fsync(self._file.fileno())
            sync_folder(self._stem.parent)
        except OSError as error:
            self._give_up(error)

    def _append(self, record: Record) -> None:
        nbytes = len(record.head) + len(record.data)
        if self.is_broken or len(MAGIC) + nbytes > self._max_bytes:
            return
        try:
            if self._file is None or self._written + nbytes > self._segment_bytes:
                self._open(max(self._segment_bytes, len(MAGIC) + nbytes))
            self._write(record.head + record.data)
            self._known[record.key] = self._path
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.is_broken = True
        log.warning(
            "Cached prefixes are no longer written to %s: %s. Restart once that is mended.",
            self._stem.parent,
            error.strerror,
        )

    def _write(self, data: bytes) -> None:
        """All of it, or nothing."""
        assert self._file is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._written)
            raise
        self._written += len(data)

    def _open(self, nbytes: int) -> None:
        """The next segment, of at most so many bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._make_room(nbytes)
        name = f"{self._stem.name}-{time.time_ns():020d}-{secrets.token_hex(4)}.kv"
        self._path = self._stem.with_name(name)
        self._file = open(self._path, "xb", buffering=0, opener=_private)  # noqa: SIM115  # stays
        self._written = 0
        self._write(MAGIC)

    def _make_room(self, nbytes: int) -> None:
        """Remove segments, the oldest of any model first, until so many bytes more may come."""
        sizes = self._segments()
        total = sum(size for _, size in sizes.values())
        for path in sorted(sizes, key=lambda path: sizes[path]):
            if total + nbytes <= self._max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= sizes[path][1]
                with self._changed:  # `put` adds to it meanwhile
                    self._known = {key: at for key, at in self._known.items() if at != path}
                log.debug("Removed %s: %s may be kept.", path, format_bytes(self._max_bytes))

    def _segments(self) -> dict[Path, tuple[int, int]]:
        """Files of all models, with the time of their last change and their bytes."""
        found = {}
        for path in self._stem.parent.glob("*.kv"):
            with contextlib.suppress(OSError):
                about = path.stat()
                found[path] = (about.st_mtime_ns, about.st_size)
        return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_APPEND, 0o600)


def record_of(group: int, block_hash: bytes, parent: bytes, data: Bytes) -> Record:
    """What a block becomes in a segment."""
    raw = data.tobytes()
    head = _HEAD.pack(_MARK, group, len(raw), zlib.crc32(raw), block_hash, parent)
    return Record((group, block_hash), head + _CHECK.pack(zlib.crc32(head)), raw)


class Head(NamedTuple):
    """What stands before a block."""

    group: int
    length: int
    check: int
    hash: bytes
    parent: bytes


HEAD_BYTES = _HEAD.size + _CHECK.size


def read_head(raw: bytes) -> Head | None:
    """HEAD_BYTES of a record; None where they are damaged."""
    mark, *fields = _HEAD.unpack_from(raw)
    whole = _CHECK.unpack_from(raw, _HEAD.size)[0] == zlib.crc32(raw[: _HEAD.size])
    return Head(*fields) if whole and mark == _MARK else None


def _entries(data: Bytes) -> Iterator[Entry]:
    if data[: len(MAGIC)].tobytes() != MAGIC:
        return
    place = len(MAGIC)
    while place + HEAD_BYTES <= len(data):
        head = read_head(data[place : place + HEAD_BYTES].tobytes())
        if head is None or place + HEAD_BYTES + head.length > len(data):
            return
        place += HEAD_BYTES + head.length
        yield Entry(
            head.group, head.hash, head.parent, head.check, data[place - head.length : place]
        )
