"""Server-sent events, and replies that end when their client leaves."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.errors import to_api_error
from pagoda.server.generation import Generation, Part
from pagoda.server.http1 import ChunkWriter, chunk_writer

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which readers of events pass over."""

_encoder = msgspec.json.Encoder()


def event(chunk: msgspec.Struct) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


class EventSource(ABC):
    """Makes the events of a reply."""

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
    `during` is entered while it runs. A silence of `keep_alive` seconds, where not 0, is filled
    with a comment.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        source: EventSource,
        during: AbstractContextManager[None],
        keep_alive: float = 0.0,
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response counts an empty body; a stream's length is unknown.
        del self.headers["content-length"]
        self._generation = generation
        self._source = source
        self._during = during
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._during:
            await _first_of(self._write(send, chunk_writer(scope)), _disconnected(receive))

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        # Started first, so that a refusal (the queue is full) still has a status of its own.
        with self._generation.started():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await self._send_events(send, write)
                last = self._source.end() + DONE
            except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
                last = b"data: " + to_api_error(error).body() + b"\n\n" + DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, send: Send, write: ChunkWriter) -> None:
        generation, source = self._generation, self._source
        while generation.running:
            arrival = generation.arrival()
            if self._keep_alive and not await _within(arrival, self._keep_alive):
                chunk = KEEP_ALIVE
            else:
                await arrival
                chunk = source.events(generation.take())
            if chunk and not write(chunk):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _within(arrival: "asyncio.Future[None]", seconds: float) -> bool:
    done, _ = await asyncio.wait((arrival,), timeout=seconds)
    return bool(done)


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
