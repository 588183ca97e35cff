"""The side that fetches blocks: one thread per fetch. The engine's loop takes what they receive."""

import contextlib
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pagoda.engine.kv_journal import HEAD_BYTES, Bytes, read_head
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.peer import Peer, as_failure, connect, greet
from pagoda.engine.transfer.wire import TransferError

# Connections that may break; what came before stays.
_TRIES = 3
_RETRY_SECONDS = 0.2
# Blocks that wait for the engine's loop.
_MOST_QUEUED = 16 << 20


class Arrived(NamedTuple):
    group: int
    hash: bytes
    data: Bytes


class Fetch:
    """The blocks of one text that another engine has and this one has not."""

    def __init__(
        self,
        peer: Peer,
        hashes: Sequence[bytes],
        have: np.ndarray,
        arrive: Callable[[], None],
        *,
        warms: bool = False,
    ):
        """`have`: bool [groups, blocks], what is there already; a thread changes it. `arrive` is
        called when there is something to `take`. `warms`: no request asks for it, so all that
        is cached of the text comes, and whom it is held for has yet to fetch it."""
        self.peer, self.hashes, self._have = peer, list(hashes), have
        self._warms = warms
        self._index = {block_hash: index for index, block_hash in enumerate(hashes)}
        self._arrive = arrive
        self._changed = threading.Condition()
        self._queue: deque[Arrived] = deque()
        self._queued = 0
        self._socket: socket.socket | None = None
        self._is_cancelled = False
        self.begun = time.monotonic()
        self.req_ids: list[str] = []
        """Those that wait for it."""
        self.failure: TransferError | None = None
        self.is_over = False
        """Nothing comes any more."""
        self.num_taken = self.nbytes = 0

    def start(self) -> None:
        if self._is_cancelled:
            self.is_over = True
            return
        threading.Thread(target=self._run, name="kv fetch", daemon=True).start()

    def cancel(self, failure: TransferError) -> None:
        """End it, whatever it does; what has come can still be taken."""
        with self._changed:
            self.failure = self.failure or failure
            self._is_cancelled = True
            sock = self._socket
            self._changed.notify_all()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def take(self, most_bytes: int) -> list[Arrived]:
        """Blocks that came, of about so many bytes."""
        taken, nbytes = [], 0
        with self._changed:
            while self._queue and nbytes < most_bytes:
                one = self._queue.popleft()
                nbytes += len(one.data)
                taken.append(one)
            self._queued -= nbytes
            self._changed.notify_all()
        self.num_taken += len(taken)
        self.nbytes += nbytes
        return taken

    def parent_of(self, block_hash: bytes) -> bytes:
        """The hash of the block before one; empty for the first."""
        index = self._index[block_hash]
        return self.hashes[index - 1] if index else b""

    @property
    def is_done(self) -> bool:
        return self.is_over and not self._queue

    def _run(self) -> None:
        failure = None
        try:
            self._fetch()
        except (TransferError, OSError, ValueError) as error:
            failure = as_failure(error)
        self.failure = self.failure or failure
        self.is_over = True
        self._arrive()

    def _fetch(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._try()
                return
            except ConnectionError:
                if not left or self._is_cancelled:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _try(self) -> None:
        with connect(self.peer) as sock:
            with self._changed:
                self._socket = sock
                if self._is_cancelled:  # while there was no socket to shut
                    raise ConnectionError("the fetch was given up")
            greet(sock, self.peer)
            have = [np.packbits(row).tobytes() for row in self._have]
            wire.send(sock, wire.Pull(b"".join(self.hashes), have, self._warms))
            coming = wire.receive(sock, wire.MOST_GREETING, wire.Coming).num_blocks
            if coming > self._have.size - int(self._have.sum()):
                raise TransferError("protocol", f"{coming} blocks come, more than were asked for")
            for _ in range(coming):
                self._put(self._read(sock))
            if not self._warms:
                wire.send(sock, wire.Done(self.hashes[-1]))

    def _read(self, sock: socket.socket) -> Arrived:
        """The next block, which is one that was asked for, and whole."""
        head = read_head(wire.read(sock, HEAD_BYTES))
        if head is None:
            raise TransferError("checksum", "what stands before a block is damaged")
        index, sizes = self._index.get(head.hash), self.peer.sizes
        asked = index is not None and head.group < len(sizes) and not self._have[head.group, index]
        if not asked or head.length != sizes[head.group]:
            raise TransferError("protocol", "a block came that was not asked for")
        raw = wire.read(sock, head.length)
        if zlib.crc32(raw) != head.check:
            raise TransferError("checksum", "a block is damaged")
        self._have[head.group, index] = True
        return Arrived(head.group, head.hash, np.frombuffer(raw, np.uint8))

    def _put(self, block: Arrived) -> None:
        with self._changed:
            self._queue.append(block)
            self._queued += len(block.data)
        self._arrive()
        with self._changed:
            self._changed.wait_for(lambda: self._queued < _MOST_QUEUED or self._is_cancelled)
        if self._is_cancelled:
            raise ConnectionError("the fetch was given up")
