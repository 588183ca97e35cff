"""Server-sent events, and replies that end when their client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda.server.errors import to_api_error

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(chunk: msgspec.Struct) -> bytes:
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


class EventStream(Response):
    """Sends what the generator yields; stops it when the client goes away.

    An exception of the generator becomes an error event: the status line is long gone by then.
    Writing waits for a slow reader, so what piles up meanwhile is the generator's affair.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None]):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # Response counts an empty body; a stream's length is unknown.
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _first_of(self._write(send), _disconnected(receive))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            last = DONE
        except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
            last = b"data: " + to_api_error(error).body() + b"\n\n" + DONE
        finally:
            await self._chunks.aclose()
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
