"""The side that wants blocks: a thread for each fetch, which the engine's loop empties."""

import contextlib
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pagoda.config.kv_transfer import is_local
from pagoda.engine.kv_journal import HEAD_BYTES, Bytes, read_head
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.wire import TransferError

_CONNECT_SECONDS = 3.0
# Connections that may break; what came before stays.
_TRIES = 3
_RETRY_SECONDS = 0.2
# Blocks that wait for the engine's loop.
_MOST_QUEUED = 16 << 20


class Arrived(NamedTuple):
    group: int
    hash: bytes
    data: Bytes


class Peer(NamedTuple):
    """Where to, and what both sides have to agree on."""

    host: str
    port: int
    secret: bytes
    blocks_of: Mapping[str, str]
    sizes: Sequence[int]
    """Bytes of a block, by group."""


class Fetch:
    """The blocks of one prompt that another engine has and this one has not."""

    def __init__(
        self, peer: Peer, hashes: Sequence[bytes], have: np.ndarray, arrive: Callable[[], None]
    ):
        """`have`: bool [groups, blocks], what is there already; a thread changes it. `arrive` is
        called when there is something to `take`."""
        self.peer, self.hashes, self._have = peer, list(hashes), have
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

    @property
    def is_done(self) -> bool:
        return self.is_over and not self._queue

    def _run(self) -> None:
        failure = None
        try:
            self._fetch()
        except TransferError as error:
            failure = error
        except TimeoutError:
            failure = TransferError("timeout", "the other engine says nothing")
        except (OSError, ValueError) as error:
            failure = TransferError("connection", str(error) or type(error).__name__)
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
        with self._connect() as sock:
            with self._changed:
                self._socket = sock
                if self._is_cancelled:  # while there was no socket to shut
                    raise ConnectionError("the fetch was given up")
            self._greet(sock)
            have = [np.packbits(row).tobytes() for row in self._have]
            wire.send(sock, wire.Pull(b"".join(self.hashes), have))
            coming = wire.receive(sock, wire.MOST_GREETING, wire.Coming).num_blocks
            if coming > self._have.size - int(self._have.sum()):
                raise TransferError("protocol", f"{coming} blocks come, more than were asked for")
            for _ in range(coming):
                self._put(self._read(sock))
            wire.send(sock, wire.Done(self.hashes[-1]))

    def _connect(self) -> socket.socket:
        host, port = self.peer.host, self.peer.port
        if not self.peer.secret and not is_local(host):
            # Not even looked up: a request names it.
            raise TransferError(
                "secret",
                f"{host[:80]} is no address of this machine; give both engines a secret "
                "(PAGODA_KV_SECRET)",
            )
        error: OSError = OSError("it has no address")
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind)
            try:
                sock.settimeout(_CONNECT_SECONDS)
                sock.connect(address)
                sock.settimeout(wire.SILENCE_SECONDS)
                return sock
            except OSError as refused:
                sock.close()
                error = refused
        raise error

    def _greet(self, sock: socket.socket) -> None:
        peer, nonce = self.peer, wire.new_nonce()
        hello = wire.receive(sock, wire.MOST_GREETING, wire.Hello)
        if hello.magic != wire.MAGIC:
            raise TransferError("protocol", f"it speaks {hello.magic[:40]!r}, not {wire.MAGIC!r}")
        shown = wire.proof(peer.secret, "fetches", nonce, hello.nonce)
        wire.send(sock, wire.Greeting(nonce, shown, dict(peer.blocks_of)))
        answer = wire.receive(sock, wire.MOST_GREETING, wire.Welcome | wire.Refusal)
        if isinstance(answer, wire.Refusal):
            raise TransferError(answer.reason[:20], answer.said[:400])
        if not wire.is_proved(answer.proof, peer.secret, "gives", hello.nonce, nonce):
            raise TransferError("secret", "the two have different secrets (PAGODA_KV_SECRET)")

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
