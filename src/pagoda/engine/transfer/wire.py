"""What two engines say to each other when KV blocks move, over TCP.

Messages are four bytes of length (big endian) and MessagePack, each of one known form. The engine
that has blocks speaks first (`Hello`); the other proves that it knows the secret, and says whose
blocks it can use (`Greeting`). The answer is a `Welcome` or a `Refusal`. Then, as often as wanted:
a `Pull`, answered by `Coming` and the blocks, records as `engine.kv_journal` writes them. `Done`
says that a prompt's blocks need no longer be kept. `ListTexts` asks what there is, answered by
`Texts`.
"""

import hmac
import secrets
import socket
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

MAGIC = "pagoda-kv-1"
HASH_BYTES = 32
SILENCE_SECONDS = 30.0
"""A peer that says nothing for so long is taken to be gone; a step of a long prompt may take some
seconds, and engines answer between steps."""
# Before anything is proved: a Greeting has some hundred bytes.
MOST_GREETING = 8 << 10
MOST_LISTED = 1 << 15
"""Hashes of all texts of a `Texts`."""
MOST_TEXTS = MOST_LISTED * (HASH_BYTES + 8)
"""Bytes of that message."""
_LENGTH = struct.Struct(">I")
NO_SECRET = b""


class TransferError(Exception):
    """What a fetch fails of; `reason` is one word for the metrics."""

    def __init__(self, reason: str, said: str):
        super().__init__(said)
        self.reason = reason


class Hello(msgspec.Struct, tag=True):
    magic: str
    nonce: bytes


class Greeting(msgspec.Struct, tag=True):
    nonce: bytes
    proof: bytes
    blocks_of: dict[str, str]
    """What the bytes of blocks depend on (`engine.transfer.identity`)."""


class Welcome(msgspec.Struct, tag=True):
    proof: bytes


class Refusal(msgspec.Struct, tag=True):
    reason: str
    said: str


class Pull(msgspec.Struct, tag=True):
    hashes: bytes
    """Those of a text's blocks, from its start, 32 bytes each."""
    have: list[bytes]
    """By group a bit for each of them, the highest first: it is there already."""
    whole: bool = False
    """All that is cached of the text, not only what is read by who goes on behind it."""


class Coming(msgspec.Struct, tag=True):
    num_blocks: int


class Done(msgspec.Struct, tag=True):
    last: bytes
    """The last hash of a Pull."""


class ListTexts(msgspec.Struct, tag=True):
    most_bytes: int
    """The blocks of the texts that are told have no more bytes."""


class Texts(msgspec.Struct, tag=True):
    texts: list[bytes]
    """The hashes of each one's blocks, as of a `Pull`; those that are worth most come first."""


def send(sock: socket.socket, message: msgspec.Struct) -> None:
    raw = msgspec.msgpack.encode(message)
    sock.sendall(_LENGTH.pack(len(raw)) + raw)


def receive(sock: socket.socket, most: int, kind: Any) -> Any:
    """The next message, of at most so many bytes; TransferError where it is none of that kind, one
    of the structs above or a union of them."""
    (length,) = _LENGTH.unpack(read(sock, _LENGTH.size))
    if length > most:
        raise TransferError("protocol", f"a message of {length} bytes is longer than {most}")
    try:
        return msgspec.msgpack.decode(read(sock, length), type=kind)
    except msgspec.MsgspecError as error:
        raise TransferError("protocol", f"a message is none that was expected: {error}") from error


def read(sock: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; ConnectionError where the peer ends before."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ConnectionError("the connection ended")
        view = view[got:]
    return bytes(data)


def new_nonce() -> bytes:
    return secrets.token_bytes(32)


def proof(secret: bytes, side: str, own: bytes, other: bytes) -> bytes:
    """What one side shows of the secret: HMAC-SHA256 over its role and both nonces; empty where
    there is no secret."""
    if secret == NO_SECRET:
        return b""
    return hmac.new(secret, side.encode() + own + other, sha256).digest()


def is_proved(shown: bytes, secret: bytes, side: str, own: bytes, other: bytes) -> bool:
    """`own` is the nonce of the side that shows it."""
    return hmac.compare_digest(shown, proof(secret, side, own, other))


def difference(fetching: Mapping[str, str], giving: Mapping[str, str]) -> str | None:
    """What keeps the one from using the other's blocks."""
    for key in {**giving, **fetching}:
        wants, has = fetching.get(key, "nothing"), giving.get(key, "nothing")
        if wants != has:
            return f"who fetches has the {key[:40]} {wants[:80]!r}, and who gives {has[:80]!r}"
    return None
