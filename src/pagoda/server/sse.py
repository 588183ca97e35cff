"""Server-sent events, and replies that end when their client leaves."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.errors import to_api_error
from pagoda.server.generation import Generation, Part
from pagoda.server.http1 import ChunkWriter, chunk_writer

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(chunk: msgspec.Struct | dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


class EventSource(ABC):
    """Makes the events of a reply."""

    terminator: ClassVar[bytes] = DONE

    @abstractmethod
    def events(self, parts: list[Part]) -> bytes:
        """Those that tell the parts; empty if there is nothing to tell yet."""

    @abstractmethod
    def end(self) -> bytes:
        """What follows the last part."""


class EventStream(Response):
    """Sends what a source makes of its generation; stops that when the client goes away.

    An exception of either becomes an error event: the status line is long gone by then.
    Writing waits for a slow reader, so what piles up meanwhile is the generation's affair.
    `during` is entered while it runs.
    """

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, source: EventSource, during: AbstractContextManager[None]
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response counts an empty body; a stream's length is unknown.
        del self.headers["content-length"]
        self._generation = generation
        self._source = source
        self._during = during

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._during:
            await _first_of(self._write(send, chunk_writer(scope)), _disconnected(receive))

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        generation, source = self._generation, self._source
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            with generation.started():
                while generation.running:
                    await generation.arrival()
                    chunk = source.events(generation.take())
                    if chunk and not write(chunk):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            last = source.end() + source.terminator
        except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
            last = b"data: " + to_api_error(error).body() + b"\n\n" + source.terminator
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The reply of `work`, which is cancelled when the client leaves before."""
    reply = await _first_of(work, _disconnected(request.receive))
    # Nobody reads this one; 499 is how access logs say so.
    return reply if reply is not None else Response(status_code=499)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(work: Coroutine[Any, Any, Any], watch: Coroutine[Any, Any, None]) -> Any:
    """Result of `work`, or None when `watch` ended first; the other one is cancelled."""
    worker, watcher = asyncio.create_task(work), asyncio.create_task(watch)
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        return worker.result() if worker.done() else None
    finally:
        unfinished = [task for task in (worker, watcher) if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
