"""An engine that gives KV blocks and lies: what it says to one `Pull` stands in `act`."""

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable

from pagoda.engine import kv_journal
from pagoda.engine.transfer import wire

Act = Callable[[socket.socket, list[bytes]], None]


class FalseGiver:
    """Greets as one of ours does, without a secret; then `act` has the socket, and the hashes that
    were asked for. Each connection is served alike."""

    def __init__(self, act: Act):
        self._act = act
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._serve, args=(self._server.accept()[0],), daemon=True
                ).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            nonce = wire.new_nonce()
            wire.send(peer, wire.Hello(wire.MAGIC, nonce))
            wire.receive(peer, wire.MOST_GREETING, wire.Greeting)
            wire.send(peer, wire.Welcome(b""))
            raw = wire.receive(peer, 1 << 20, wire.Pull).hashes
            size = wire.HASH_BYTES
            self._act(peer, [raw[at : at + size] for at in range(0, len(raw), size)])


def record(
    block_hash: bytes, data: bytes, *, group: int = 0, length: int | None = None, turned: int = 0
) -> bytes:
    """A block behind a head that is whole, whatever it says; `turned`: bits of the checksum."""
    length = len(data) if length is None else length
    head = kv_journal._HEAD.pack(
        kv_journal._MARK, group, length, zlib.crc32(data) ^ turned, block_hash, bytes(32)
    )
    return head + kv_journal._CHECK.pack(zlib.crc32(head)) + data
