"""HTTP/1.1 for replies of many small chunks, and for peers that take their time."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from pagoda.server.errors import ApiError

_EXTENSION = "pagoda.write"

MAX_HEAD = 16 * 1024
"""Bytes of a request's line and headers; h11 has the same bound for one that is not complete."""

# Bytes that are parsed before others get their turn: 1,400 chunks of one byte, in 20 ms.
_PIECE = 8 * 1024

# Seconds. HTTP clients commonly drop a connection that was idle for 5, so they are first.
IDLE_TIMEOUT = 30
"""For the next request to begin."""
HEAD_TIMEOUT = 30
"""For a request's line and headers to be complete."""
WRITE_TIMEOUT = 300
"""For a reader that has stopped to go on."""

_HOST = re.compile(rb"([A-Za-z0-9._~!$&'()*+;=%-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
"""RFC 9110, 7.2, without the comma, which joins two headers that a proxy has merged."""

ChunkWriter = Callable[[bytes], bool]
"""Writes a chunk of a reply without a length, once its head is sent. False, and nothing done,
where it is ASGI's `send` that has to: to wait for a slow reader, or because nobody reads."""


class _Flow(FlowControl):
    """Does not read on while some of what was read is held back."""

    holds = False

    def resume_reading(self) -> None:
        if self.holds:
            self.read_paused = False
        else:
            super().resume_reading()

    def hold(self) -> None:
        self.holds = True
        self._transport.pause_reading()

    def release(self) -> None:
        self.holds = False
        if not self.read_paused:
            self._transport.resume_reading()


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
        self._held = b""
        self.timeout_keep_alive = IDLE_TIMEOUT
        self._peer_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._upgraded = False
        """The connection belongs to another protocol."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._watch_peer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held = b""
        self._peer_timer = _cancelled(self._peer_timer)
        self._write_timer = _cancelled(self._write_timer)

    def data_received(self, data: bytes) -> None:
        if self.flow.holds:
            self._held += data
            self.flow.hold()  # somebody has resumed reading
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        super().data_received(data[:_PIECE])
        if self._upgraded:
            self._held = b""
            if self.flow.holds:
                self.flow.release()
            return
        self._watch_peer()
        self._held = data[_PIECE:]
        if self.transport.is_closing():
            return
        if self._held:
            self.flow.hold()
            self.loop.call_soon(self._take_held)
        elif self.flow.holds:
            self.flow.release()

    def _take_held(self) -> None:
        if not self.transport.is_closing():
            self._take(self._held)

    def _should_upgrade(self) -> bool:
        """Not where something is wrong with the request: it is refused as any other then."""
        if not super()._should_upgrade() or self.scope["method"] != "GET":
            return False
        bodies = {b"content-length", b"transfer-encoding"}
        return _fault(self.scope) is None and not bodies & dict(self.headers).keys()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._peer_timer = _cancelled(self._peer_timer)
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_timer = _cancelled(self._write_timer)

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP: in the form of all other errors."""
        self._peer_timer = _cancelled(self._peer_timer)
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # a reply has begun
            return
        error = _told(sys.exception())
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        asked = self.conn.our_state is h11.SEND_RESPONSE  # else the method is not known
        body = b"" if asked and self.scope["method"] == "HEAD" else error.body()
        reply = (
            h11.Response(status_code=error.status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in reply))
        self.transport.close()
        if asked:
            # Whoever was to answer this request hears that nobody reads that any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _watch_peer(self) -> None:
        """Bytes that come one by one keep no connection open: the time is for a whole head, or
        for the rest of a body whose request was answered already. Where none come, uvicorn's
        timer of idle connections runs."""
        state = self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        if state is not h11.IDLE and not (state is h11.SEND_BODY and answered):
            self._peer_timer = _cancelled(self._peer_timer)
        elif self._peer_timer is None and not self.transport.is_closing():
            self._peer_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = _fault(scope)
        if error is not None:
            response = error.response(scope)
            response.headers["connection"] = "close"  # what follows may be no request
            await response(scope, receive, send)
            return
        # The end of an older client's reply is that of its connection: its chunks have no frames.
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope["extensions"] = {_EXTENSION: self._write}

        async def send_in_order(message: Message) -> None:
            self._flush()
            if message["type"] == "http.response.start":
                message["headers"] = _as_written(message["headers"])
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
        chunks, self._chunks = self._chunks, b""
        if chunks and not self.transport.is_closing():
            self.transport.write(chunks)


def chunk_writer(scope: Scope) -> ChunkWriter:
    """That of the connection; under other servers, one that leaves everything to `send`."""
    writer: ChunkWriter = scope.get("extensions", {}).get(_EXTENSION, _never)
    return writer


def _never(data: bytes) -> bool:
    return False


def head_too_large() -> ApiError:
    return ApiError(431, f"A request's line and headers may have {MAX_HEAD} bytes.")


def _told(cause: BaseException | None) -> ApiError:
    """What h11 found wrong."""
    status = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
    if status == 431:
        return head_too_large()
    if status == 501:
        return ApiError(501, "The only Transfer-Encoding that is understood is 'chunked'.")
    return ApiError(400, "This is no valid HTTP request.")


def _as_written(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """`Content-Type`, as every other server has it: some scripts look for these letters, though
    names of headers have no case. uvicorn looks for `connection` in small ones."""
    return [(name if name == b"connection" else name.title(), value) for name, value in headers]


def _fault(scope: Mapping[str, Any]) -> ApiError | None:
    """What h11 lets pass, and another server might frame otherwise (RFC 9112, 3.2 and 6.1)."""
    if _head_size(scope) > MAX_HEAD:
        return head_too_large()
    version, headers = scope["http_version"], dict(scope["headers"])
    if not version.startswith("1."):
        return ApiError(505, f"HTTP/{version} is not spoken here; send HTTP/1.1.")
    if scope["method"] == "CONNECT":
        return ApiError(405, "There are no tunnels here; send the request itself.")
    if not _HOST.fullmatch(headers.get(b"host", b"")):
        return ApiError(400, "The Host is no name or address; send the server's own.")
    if b"transfer-encoding" in headers and (b"content-length" in headers or version == "1.0"):
        return ApiError(
            400,
            "A Transfer-Encoding may stand neither beside a Content-Length nor in HTTP/1.0; "
            "send one of the two, in HTTP/1.1.",
        )
    return None


def _head_size(scope: Mapping[str, Any]) -> int:
    size = len(scope["raw_path"]) + len(scope["query_string"])
    for name, value in scope["headers"]:
        size += len(name) + len(value) + 4  # a colon, a space and the end of the line
    return size


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """What is left of a timer."""
    if timer is not None:
        timer.cancel()
    return None
