"""The side that has blocks: a listener, and one thread per fetching engine."""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.engine.kv_journal import Record
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.wire import TransferError

log = get_logger(__name__)

# Fetching engines at once; each has a thread and copies that wait for its network.
_MOST_PEERS = 32
_MOST_QUEUED = 16 << 20
# The engine answers between two of its steps.
_ANSWER_SECONDS = 25.0


class Asked:
    """One `Pull`, answered by the engine's loop: how many blocks, then the blocks."""

    def __init__(self, pull: wire.Pull):
        self.pull = pull
        self._changed = threading.Condition()
        self._count: int | None = None
        self._records: deque[Record] = deque()
        self._queued = 0
        self._ended = False
        self.is_given_up = False
        """Nobody waits for the rest."""

    def announce(self, count: int) -> None:
        with self._changed:
            self._count = count
            self._changed.notify_all()

    @property
    def has_room(self) -> bool:
        return self._queued < _MOST_QUEUED

    def put(self, record: Record) -> None:
        with self._changed:
            self._records.append(record)
            self._queued += len(record.data)
            self._changed.notify_all()

    def end(self) -> None:
        """No more blocks come, be they all or not."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def count(self) -> int:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._count is not None or self._ended, _ANSWER_SECONDS
            ):
                raise TransferError("timeout", "the engine did not answer")
            return self._count or 0

    def take(self) -> Record | None:
        """The next block; None behind the last one."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._records or self._ended, _ANSWER_SECONDS):
                raise TransferError("timeout", "the engine did not go on")
            return self._records.popleft() if self._records else None

    def taken(self, record: Record) -> None:
        """It is on its way: there is room for others."""
        with self._changed:
            self._queued -= len(record.data)


class Loop(Protocol):
    """The engine's side of it; called from any thread."""

    def ask(self, asked: Asked) -> None: ...
    def done(self, last: bytes) -> None: ...
    def list_texts(self, most_bytes: int) -> Future[list[bytes]]:
        """As `wire.Texts` has them, once the loop is between two steps."""

    def went_on(self) -> None:
        """There is room again for blocks."""


class Listener:
    """Accepts engines that fetch. ConfigError where the address is taken."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        loop: Loop,
        secret: bytes,
        blocks_of: Mapping[str, str],
        most_hashes: int,
    ):
        """`most_hashes`: blocks of the longest text."""
        self._loop, self._secret, self._blocks_of = loop, secret, dict(blocks_of)
        # A hash and a bit for each group, with what stands around them.
        self._most_bytes = most_hashes * 40 + (8 << 10)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=_MOST_PEERS)
        except OSError as error:
            raise ConfigError(
                f"KV blocks cannot be given at {host} port {port}: {error.strerror}. Give another "
                "kv_ip or kv_port in --kv-transfer-config."
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._peers: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="kv transfer", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for peer in self._peers:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                peer, address = self._socket.accept()
            except OSError:
                return
            with self._lock:
                if len(self._peers) >= _MOST_PEERS:
                    log.warning(
                        "%d engines fetch KV blocks; %s is sent away.", _MOST_PEERS, address
                    )
                    peer.close()
                    continue
                self._peers.add(peer)
            threading.Thread(
                target=self._serve, args=(peer, str(address[0])), name="kv peer", daemon=True
            ).start()

    def _serve(self, peer: socket.socket, address: str) -> None:
        try:
            peer.settimeout(wire.GREETING_SECONDS)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(peer)
            peer.settimeout(wire.SILENCE_SECONDS)
            while True:
                message = wire.receive(
                    peer, self._most_bytes, wire.Pull | wire.Done | wire.ListTexts
                )
                self._answer(peer, message)
        except TransferError as error:
            log.warning("An engine at %s fetches no KV blocks: %s.", address, error)
        except OSError as error:
            log.debug("An engine at %s that fetched KV blocks left: %s.", address, error)
        finally:
            with self._lock:
                self._peers.discard(peer)
            peer.close()

    def _greet(self, peer: socket.socket) -> None:
        nonce, until = wire.new_nonce(), time.monotonic() + wire.GREETING_SECONDS
        wire.send(peer, wire.Hello(wire.MAGIC, nonce))
        greeting = wire.receive(peer, wire.MOST_GREETING, wire.Greeting, until)
        if not wire.is_proved(greeting.proof, self._secret, "fetches", greeting.nonce, nonce):
            self._refuse(peer, "secret", "the two have different secrets (PAGODA_KV_SECRET)")
        other = wire.difference(greeting.blocks_of, self._blocks_of)
        if other is not None:
            self._refuse(peer, "other_model", other)
        wire.send(peer, wire.Welcome(wire.proof(self._secret, "gives", nonce, greeting.nonce)))

    def _refuse(self, peer: socket.socket, reason: str, said: str) -> None:
        wire.send(peer, wire.Refusal(reason, said))
        raise TransferError(reason, said)

    def _answer(
        self, peer: socket.socket, message: "wire.Pull | wire.Done | wire.ListTexts"
    ) -> None:
        if isinstance(message, wire.Done):
            self._loop.done(message.last)
            return
        if isinstance(message, wire.ListTexts):
            try:
                texts = self._loop.list_texts(message.most_bytes).result(_ANSWER_SECONDS)
            except TimeoutError as error:
                raise TransferError("timeout", "the engine did not answer") from error
            wire.send(peer, wire.Texts(texts))
            return
        asked = Asked(message)
        self._loop.ask(asked)
        try:
            missing = asked.count()
            wire.send(peer, wire.Coming(missing))
            while (record := asked.take()) is not None:
                peer.sendall(record.head)
                peer.sendall(record.data)
                asked.taken(record)
                self._loop.went_on()
                missing -= 1
            if missing:
                # Who fetches sees the end of the connection, and asks for what there still is.
                raise ConnectionError(f"{missing} blocks made room for others meanwhile")
        finally:
            asked.is_given_up = True
            self._loop.went_on()
