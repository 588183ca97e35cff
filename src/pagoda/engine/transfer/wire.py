"""The messages that two engines exchange over TCP to move KV blocks.

Messages are frames (`engine.framed`) of MessagePack, each of one known type. The engine that has
blocks speaks first (`Hello`). The other proves that it knows the secret, and says whose blocks it
can use (`Greeting`). The answer is a `Welcome` or a `Refusal`.

Any number of requests follow:

- `Pull` is answered by `Coming` and the blocks, as records that `engine.kv_journal` writes.
- `Done` says that a prompt's blocks need not be kept any longer.
- `ListTexts` asks for what the cache holds. `Texts` answers.
"""

import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from pagoda.engine.framed import (
    GREETING_SECONDS,
    FrameError,
    is_proved,
    new_nonce,
    proof,
    read,
    read_frame,
    send_frame,
)

__all__ = ["GREETING_SECONDS", "is_proved", "new_nonce", "proof", "read"]

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
    send_frame(sock, msgspec.msgpack.encode(message))


def receive(sock: socket.socket, most: int, kind: Any, until: float | None = None) -> Any:
    """The next message, of at most so many bytes; TransferError where it is none of that kind, one
    of the structs above or a union of them. `until` as `framed.read` has it."""
    try:
        return msgspec.msgpack.decode(read_frame(sock, most, until), type=kind)
    except FrameError as error:
        raise TransferError("protocol", str(error)) from error
    except msgspec.MsgspecError as error:
        raise TransferError("protocol", f"a message is none that was expected: {error}") from error


def difference(fetching: Mapping[str, str], giving: Mapping[str, str]) -> str | None:
    """What keeps the one from using the other's blocks."""
    for key in {**giving, **fetching}:
        wants, has = fetching.get(key, "nothing"), giving.get(key, "nothing")
        if wants != has:
            return f"who fetches has the {key[:40]} {wants[:80]!r}, and who gives {has[:80]!r}"
    return None
