"""HTTP/1.1 for replies of many small chunks."""

from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_EXTENSION = "pagoda.write"

ChunkWriter = Callable[[bytes], bool]
"""Writes a chunk of a reply without a length, once its head is sent. False, and nothing done,
where it is ASGI's `send` that has to: to wait for a slow reader, or because nobody reads."""


class StreamingProtocol(H11Protocol):
    """Has a short way for the chunks of a streamed reply: from the application to the transport.

    Between the head and the end of a reply there is nothing to look at, but on the long way each
    chunk passes all middleware, uvicorn's checks and h11's: a tenth of the work for a token.

    A chunk is written behind the tasks that are due already. Streams that got a token in the same
    step so all make their chunks before the first one is written, and neither that code nor the
    kernel's pushes the other out of the caches for each token.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._application, self.app = self.app, self._serve
        self._chunks = b""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The end of an older client's reply is that of its connection: its chunks have no frames.
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope["extensions"] = {_EXTENSION: self._write}

        async def send_in_order(message: Message) -> None:
            self._flush()
            await send(message)

        await self._application(scope, receive, send_in_order)

    def _write(self, data: bytes) -> bool:
        if self.flow.write_paused or self.cycle.disconnected or not data:
            return False
        if not self._chunks:
            self.loop.call_soon(self._flush)
        self._chunks += b"%x\r\n%b\r\n" % (len(data), data)
        return True

    def _flush(self) -> None:
        if self._chunks:
            self.transport.write(self._chunks)
            self._chunks = b""


def chunk_writer(scope: Scope) -> ChunkWriter:
    """That of the connection; under other servers, one that leaves everything to `send`."""
    writer: ChunkWriter = scope.get("extensions", {}).get(_EXTENSION, _never)
    return writer


def _never(data: bytes) -> bool:
    return False
