"""Bytes of a connection: requests begin and end in the same places however the bytes are cut.

Sources: src/pagoda/server/http1.py, over uvicorn and h11.
"""

import asyncio
import re

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from pagoda.server.http1 import StreamingProtocol

WORDS = (
    b"\r\n", b"\n", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /v1 HTTP/1.1\r\n",
    b"HTTP/1.0", b"HTTP/2.0", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 5, 6\r\n", b"Host: a\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"5\r\nhello\r\n",
    b"0\r\n\r\n", b"5;x=y\r\n", b"ffffffffffffffff\r\n", b"0x5\r\n", b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100-continue\r\n", b" ", b"\t",
    b"\x00", b":", b"%", b"?a=b#c", b"*", b"http://a/b", b"OPTIONS * HTTP/1.1\r\n", b"\r",
    b"\xff", b"X: " + b"a" * 2000 + b"\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


class _Transport(asyncio.Transport):
    """Keeps what is written. Closed, it takes nothing in, as a socket's transport."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Application:
    """Notes each request, with its body where it came whole."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        parts = ("method", "path", "raw_path", "query_string", "http_version")
        headers = tuple(tuple(pair) for pair in scope["headers"])
        self.seen.append((*(scope[part] for part in parts), headers, body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


def fuzz_http1(data: bytes) -> None:
    """The first byte says how the rest is cut."""
    step, stream = 1 + data[0] % 13 if data else 1, data[1:]
    pieces = [stream[i : i + step] for i in range(0, min(len(stream), 4096), step)]
    whole, cut = asyncio.run(_both([stream], [*pieces, stream[len(pieces) * step :]]))
    assert cut == whole, (whole, cut)


async def _both(one: list[bytes], other: list[bytes]) -> tuple[object, object]:
    return await _serve(one), await _serve(other)


async def _serve(pieces: list[bytes]) -> tuple[object, list[bytes]]:
    """What the application saw, and with what status each was answered. (Of two things that are
    wrong with a request the one that is seen first is named.)"""
    application, transport = _Application(), _Transport()
    config = uvicorn.Config(
        application, log_config=None, lifespan="off", ws="none", server_header=False,
        access_log=False,
    )  # fmt: skip
    config.load()
    protocol = StreamingProtocol(config, ServerState(), {})
    protocol.connection_made(transport)
    try:
        for piece in filter(None, pieces):
            if transport.closed:
                break
            protocol.data_received(piece)
            await _settle()
    finally:
        protocol.connection_lost(None)
        await asyncio.gather(*protocol.tasks, return_exceptions=True)
    return application.seen, _STATUS.findall(transport.written)


async def _settle() -> None:
    """Until the application has done what it can with the bytes so far."""
    for _ in range(8):
        await asyncio.sleep(0)
