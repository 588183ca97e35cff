"""Messages over TCP, each behind four bytes of length (big endian), and how two sides prove to each
other that they know the same secret: neither sends it."""

import hmac
import secrets
import socket
import struct
import time
from hashlib import sha256

_LENGTH = struct.Struct(">I")
NO_SECRET = b""
GREETING_SECONDS = 10.0
"""Until both sides have proved themselves: a peer that has not, and holds one of few places."""


class FrameError(Exception):
    """A message is longer than any that is expected."""


def send_frame(sock: socket.socket, raw: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(raw)) + raw)


def read_frame(sock: socket.socket, most: int, until: float | None = None) -> bytes:
    """The next message, of at most so many bytes; FrameError where it is longer. `until` as `read`
    has it."""
    (length,) = _LENGTH.unpack(read(sock, _LENGTH.size, until))
    if length > most:
        raise FrameError(f"a message of {length} bytes is longer than {most}")
    return read(sock, length, until)


def read(sock: socket.socket, count: int, until: float | None = None) -> bytes:
    """Exactly so many bytes; ConnectionError where the peer ends before.

    `until`: TimeoutError at that time.monotonic(), however often a byte comes. It replaces the
    socket's own timeout, which bounds the wait for the next byte.
    """
    data = bytearray(count)
    view = memoryview(data)
    while view:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("the peer took too long")
            sock.settimeout(left)
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
