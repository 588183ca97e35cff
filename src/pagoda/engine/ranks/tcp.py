"""The connection between rank 0 and ranks on other machines: one TCP connection per rank."""

import contextlib
import queue
import secrets
import threading
from collections.abc import Callable

from pagoda.config.kv_transfer import is_local
from pagoda.engine.ranks.link import FromRank, Place, TcpPlace, ToRank, encode, from_rank, to_rank
from pagoda.engine.ranks.listening import (
    Connection,
    Entering,
    Host,
    NodeEnters,
    RankEnters,
    RefusedError,
    enter,
    follow,
    listen,
)

_LINGER_SECONDS = 0.5


class TcpLeader:
    """Rank 0's end. What is said before a rank has come waits for it."""

    def __init__(
        self, address: str, port: int, size: int, secret: bytes, nodes: Host | None = None
    ):
        """Listens at an address of this machine; port 0 takes any that is free. `nodes` lets in
        nodes. ConfigError where it cannot listen there; the caller sees to it that there is a
        secret wherever other machines may connect."""
        assert secret or is_local(address)
        self._size, self._nodes = size, nodes
        self._token = secrets.token_hex(16)
        self._words: queue.SimpleQueue[FromRank] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ranks: dict[int, Connection] = {}
        self._said: list[bytes] | None = []
        """All that was sent so far, until every rank has come."""
        self._listener = listen(address, port, secret=secret, host=self)
        self.address = self._listener.address
        self.place: Place = TcpPlace(self.address, self._listener.port, self._token, secret)

    def send(self, message: ToRank) -> None:
        raw = encode(message)
        with self._lock:
            if self._said is not None:
                self._said.append(raw)
            for connection in self._ranks.values():
                # Whoever started it says that it is gone, and why.
                with contextlib.suppress(OSError):
                    connection.send(raw)

    def receive(self, timeout_ms: int) -> FromRank | None:
        try:
            return self._words.get(timeout_ms > 0, timeout_ms / 1000)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._listener.close()
        # Without the lock: whoever sends may wait for a rank that stands still.
        for connection in list(self._ranks.values()):
            connection.close()

    def check(self, who: Entering) -> None:
        if isinstance(who, RankEnters):
            if who.token != self._token or not 0 < who.rank < self._size:
                raise RefusedError(f"rank {who.rank} belongs to another start of the engine")
            if who.rank in self._ranks:
                raise RefusedError(f"there is a rank {who.rank} already")
        elif self._nodes is None:
            raise RefusedError("this engine has no other nodes")
        else:
            self._nodes.check(who)

    def enter(self, who: Entering, connection: Connection) -> None:
        if isinstance(who, NodeEnters):
            assert self._nodes is not None
            self._nodes.enter(who, connection)
            return
        with self._lock:
            for raw in self._said or ():
                connection.send(raw)
            self._ranks[who.rank] = connection
            if len(self._ranks) == self._size - 1:
                self._said = None
        follow(
            connection, lambda raw: self._words.put(from_rank(raw)), lambda _: connection.close()
        )


class TcpEnd:
    """The end of one of the others."""

    def __init__(self, place: TcpPlace, rank: int, on_lost: Callable[[], object]):
        """`on_lost` is called by a thread when rank 0 is gone."""
        who = RankEnters(rank, place.token)
        self._connection = enter(place.host, place.port, secret=place.secret, who=who)
        self.address = self._connection.address
        self._orders: queue.SimpleQueue[ToRank] = queue.SimpleQueue()
        self._reader = follow(
            self._connection,
            lambda raw: self._orders.put(to_rank(raw)),
            lambda _: on_lost(),
        )

    def receive(self) -> ToRank:
        return self._orders.get()

    def send(self, message: FromRank) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(encode(message))

    def close(self) -> None:
        self._connection.finish()
        self._reader.join(_LINGER_SECONDS)
        self._connection.close()
