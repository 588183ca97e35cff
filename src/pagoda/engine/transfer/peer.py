"""An engine that has blocks, from the side of one that fetches them."""

import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pagoda.config.kv_transfer import is_local
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.wire import TransferError

_CONNECT_SECONDS = 3.0


class Peer(NamedTuple):
    """Where to, and what both sides have to agree on."""

    host: str
    port: int
    secret: bytes
    blocks_of: Mapping[str, str]
    sizes: Sequence[int]
    """Bytes of a block, by group."""

    @property
    def where(self) -> str:
        return f"{self.host} port {self.port}"


def connect(peer: Peer) -> socket.socket:
    """OSError where nobody answers; TransferError for another machine without a secret."""
    host, port = peer.host, peer.port
    if not peer.secret and not is_local(host):
        # Not even looked up: a request may name it.
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


def greet(sock: socket.socket, peer: Peer) -> None:
    """Each side shows the other that it knows the secret; TransferError where it does not, or
    where the other engine's blocks are of no use here."""
    nonce = wire.new_nonce()
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


def as_failure(error: Exception) -> TransferError:
    """What became of a fetch that ended so."""
    if isinstance(error, TransferError):
        return error
    if isinstance(error, TimeoutError):
        return TransferError("timeout", "the other engine says nothing")
    return TransferError("connection", str(error) or type(error).__name__)
