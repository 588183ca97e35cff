"""Connections between the machines of one engine: rank 0 listens, ranks and nodes connect.

The listener speaks first (`Hello`). The other side identifies itself and proves that it knows the
secret (`Entry`). The answer is `Admitted`, with the listener's own proof, or `Refused`. After that,
both sides send frames (`engine.framed`) of MessagePack.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.engine.framed import (
    GREETING_SECONDS,
    FrameError,
    is_proved,
    new_nonce,
    proof,
    read_frame,
    send_frame,
)
from pagoda.version import __version__

log = get_logger(__name__)

MAGIC = "pagoda-ranks-1"
OTHER_SECRET = "the two have different secrets (PAGODA_NODES_SECRET)"
_CONNECT_SECONDS = 5.0
_BACKLOG = 128
# Greetings at once.
_MOST_GREETINGS = 256
# Before anything is proved.
_MOST_GREETING = 64 << 10
# A plan of a very large step has some hundred KiB.
_MOST_BYTES = 256 << 20


class RankEnters(msgspec.Struct, tag=True):
    rank: int
    token: str
    """That of `TcpPlace`."""


class NodeEnters(msgspec.Struct, tag=True):
    """A machine that offers to run its ranks, once its model is there."""

    node_rank: int
    sizes: dict[str, int]
    """Flags that must be the same on all nodes, and their values."""
    model: str
    """What tells its weight files from others."""


Entering = RankEnters | NodeEnters


class Hello(msgspec.Struct, tag=True):
    magic: str
    version: str
    nonce: bytes


class Entry(msgspec.Struct, tag=True):
    nonce: bytes
    proof: bytes
    version: str
    who: msgspec.Raw
    """`Entering`, which is read when the version is known to be the same."""


class Admitted(msgspec.Struct, tag=True):
    proof: bytes


class Refused(msgspec.Struct, tag=True):
    said: str
    for_now: bool = False
    """It may be different in a moment."""


class RefusedError(Exception):
    """Rank 0 does not want this rank or node."""

    def __init__(self, said: str, *, for_now: bool = False):
        super().__init__(said)
        self.for_now = for_now


class Connection:
    """One that both sides have agreed on. Several threads may send; one receives."""

    def __init__(self, sock: socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._lock = threading.Lock()
        self.address: str = sock.getsockname()[0]
        """This machine's."""
        self.peer: str = sock.getpeername()[0]

    def be_heard(self, seconds: float | None) -> None:
        """What waits longer than so for the peer, in either direction, is a TimeoutError."""
        self._socket.settimeout(seconds)

    def send(self, raw: bytes) -> None:
        """OSError where the peer is gone."""
        with self._lock:
            send_frame(self._socket, raw)

    def receive(self) -> bytes:
        """OSError where the peer is gone, FrameError where it speaks something else."""
        return read_frame(self._socket, _MOST_BYTES)

    def finish(self) -> None:
        """Send no more; what was sent arrives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wakes whoever receives. Harmless when repeated."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Host(Protocol):
    """Whom the listener lets in. Called from threads of its own."""

    def check(self, who: Entering) -> None:
        """RefusedError for one that is not let in."""

    def enter(self, who: Entering, connection: Connection) -> None:
        """It is in, and hears what is sent from now on."""


class Listener:
    """Lets in whoever knows the secret and whom the host wants."""

    def __init__(self, address: str, port: int, *, secret: bytes, host: Host):
        """OSError where the address is taken, or is none of this machine's."""
        self._secret, self._host = secret, host
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        self.address: str = self._socket.getsockname()[0]
        self.port: int = self._socket.getsockname()[1]
        self._greetings = threading.Semaphore(_MOST_GREETINGS)
        threading.Thread(target=self._accept, name="ranks", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            if not self._greetings.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._greet, args=(peer,), name="greet", daemon=True).start()

    def _greet(self, peer: socket.socket) -> None:
        where = "?"
        try:
            connection = Connection(peer)
            where = connection.peer
            connection.be_heard(GREETING_SECONDS)
            who, answer = self._let_in(peer)
            connection.be_heard(None)
            _send(peer, answer)
            self._host.enter(who, connection)
        except RefusedError as error:
            level = log.debug if error.for_now else log.warning
            level("%s may not take part: %s.", where, error)
            with contextlib.suppress(OSError):
                _send(peer, Refused(str(error), error.for_now))
            peer.close()
        except (OSError, FrameError, msgspec.MsgspecError) as error:
            log.debug("%s connected and did not enter: %s.", where, error)
            peer.close()
        finally:
            self._greetings.release()

    def _let_in(self, peer: socket.socket) -> tuple[Entering, Admitted]:
        nonce, until = new_nonce(), time.monotonic() + GREETING_SECONDS
        _send(peer, Hello(MAGIC, __version__, nonce))
        entry = _receive(peer, Entry, until)
        # The secret first: who does not know it learns nothing.
        if not is_proved(entry.proof, self._secret, "enters", entry.nonce, nonce):
            raise RefusedError(OTHER_SECRET)
        if entry.version != __version__:
            raise RefusedError(other_version(entry.version, __version__))
        who = msgspec.msgpack.decode(entry.who, type=Entering)
        self._host.check(who)
        return who, Admitted(proof(self._secret, "lets in", nonce, entry.nonce))


def enter(address: str, port: int, *, secret: bytes, who: Entering) -> Connection:
    """Connect to a listener. OSError where there is none (yet), RefusedError where it says no."""
    sock = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
    try:
        until = time.monotonic() + GREETING_SECONDS
        hello, nonce = _receive(sock, Hello, until), new_nonce()
        if hello.magic != MAGIC:
            raise RefusedError(f"{address} port {port} is not Pagoda's")
        shown = proof(secret, "enters", nonce, hello.nonce)
        raw = msgspec.Raw(msgspec.msgpack.encode(who))
        _send(sock, Entry(nonce, shown, __version__, raw))
        answer = _receive(sock, Admitted | Refused, until)
        if isinstance(answer, Refused):
            raise RefusedError(answer.said[:1000], for_now=answer.for_now)
        if not is_proved(answer.proof, secret, "lets in", hello.nonce, nonce):
            raise RefusedError(OTHER_SECRET)
        sock.settimeout(None)
        return Connection(sock)
    except (FrameError, msgspec.MsgspecError) as error:
        sock.close()
        raise RefusedError(f"{address} port {port} speaks something else") from error
    except BaseException:
        sock.close()
        raise


def other_version(own: str, rank_0: str) -> str:
    return f"this is Pagoda {own}, and node 0 has {rank_0}; install the same on all machines"


def listen(address: str, port: int, *, secret: bytes, host: Host) -> Listener:
    """ConfigError where that cannot be."""
    try:
        return Listener(address, port, secret=secret, host=host)
    except OSError as error:
        raise ConfigError(
            f"Rank 0 cannot listen at {address} port {port} for the other machines: "
            f"{error.strerror or error}. --master-addr is an address of the machine with "
            "--node-rank 0; --master-port takes another port."
        ) from error


def follow(
    connection: Connection, take: Callable[[bytes], Any], lost: Callable[[Exception], Any]
) -> threading.Thread:
    """Have a thread `take` what comes, and say once that the peer is `lost`, and why."""

    def run() -> None:
        try:
            while True:
                take(connection.receive())
        except (OSError, FrameError, msgspec.MsgspecError) as error:
            lost(error)

    thread = threading.Thread(target=run, name="connection", daemon=True)
    thread.start()
    return thread


def _send(sock: socket.socket, message: msgspec.Struct) -> None:
    send_frame(sock, msgspec.msgpack.encode(message))


def _receive(sock: socket.socket, kind: Any, until: float) -> Any:
    return msgspec.msgpack.decode(read_frame(sock, _MOST_GREETING, until), type=kind)
