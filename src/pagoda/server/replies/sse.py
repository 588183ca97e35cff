"""Server-sent events, and replies that end when their client leaves."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.errors import to_api_error
from pagoda.server.http1 import ChunkWriter, chunk_writer
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.silence import Silence

_encoder = msgspec.json.Encoder()
AnyT = TypeVar("AnyT")


def data_event(chunk: msgspec.Struct | dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


class TextEvent:
    """An event in which only a text changes: what stands around it is encoded once."""

    # Private characters; what follows a text in a chunk is nobody's words.
    _MARK = "\ue000text\ue001"

    def __init__(self, chunk: Callable[[str], msgspec.Struct]):
        whole, mark = data_event(chunk(self._MARK)), _encoder.encode(self._MARK)
        self._before, _, self._after = whole.rpartition(mark)

    def of(self, text: str) -> bytes:
        return self._before + _encoder.encode(text) + self._after


def named_event(name: str, chunk: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encoder.encode(chunk) + b"\n\n"


class SseResponse(Response, ABC):
    """Stops when the client goes away; `during` is entered while it runs.

    Writing waits for a slow reader.
    """

    media_type = "text/event-stream"

    def __init__(self, during: AbstractContextManager[None]):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response counts an empty body; a stream's length is unknown.
        del self.headers["content-length"]
        self._during = during

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._during:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await until_disconnected(receive, self._write(send, chunk_writer(scope)))

    @abstractmethod
    async def _write(self, send: Send, write: ChunkWriter) -> None:
        """Everything behind the head, by `write` or else `send`."""


class EventStream(SseResponse):
    """Sends a reply as its events come.

    An exception of either becomes an error event: the status line is long gone by then. What piles
    up behind a slow reader is the generation's affair. A silence of `interval` seconds is filled
    with what the reply says while it waits.
    """

    def __init__(self, reply: Reply, during: AbstractContextManager[None], interval: float):
        self.media_type = reply.media_type
        super().__init__(during)
        self._reply = reply
        self._interval = interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Before the head, so that a refusal (the queue is full) has a status of its own.
        with self._reply.generation.started():
            await super().__call__(scope, receive, send)

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        reply, generation = self._reply, self._reply.generation
        try:
            with Silence(self._interval, generation.wake) as silence:
                while generation.running:
                    await generation.arrival()
                    chunk = b"".join([reply.tell(event) for event in reply.stream.take()])
                    if not chunk and silence.is_over:
                        chunk = reply.waiting()
                    if not chunk:
                        continue
                    silence.told()
                    if not write(chunk):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            rest = reply.end()
        except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
            rest = reply.failed(to_api_error(error))
        rest += reply.last
        await send({"type": "http.response.body", "body": rest, "more_body": False})


class ChunkStream(SseResponse):
    """Sends chunks as they come."""

    def __init__(self, chunks: AsyncIterator[bytes], during: AbstractContextManager[None]):
        super().__init__(during)
        self._chunks = chunks

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        async for chunk in self._chunks:
            if not write(chunk):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, AnyT]) -> AnyT | None:
    """Result of `work`, or None when the client left first: then it is cancelled."""
    working = asyncio.current_task()
    assert working is not None
    watcher = asyncio.create_task(_cancel_when_left(receive, working))
    try:
        return await work
    except asyncio.CancelledError:
        if watcher.done() and not working.uncancel():
            return None
        raise
    finally:
        watcher.cancel()


async def _cancel_when_left(receive: Receive, working: "asyncio.Task[Any]") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()
