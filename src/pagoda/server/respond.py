"""The last step of a generating route: one JSON reply, or a stream of events."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import Context
from pagoda.server.metrics import Metrics
from pagoda.server.sse import EventStream, unless_disconnected

Reply = msgspec.Struct | Sequence[msgspec.Struct]


async def respond(
    request: Request,
    context: Context,
    *,
    chunks: Callable[[], AsyncGenerator[bytes, None]] | None,
    whole: Callable[[], Coroutine[Any, Any, Reply]],
) -> Response:
    """Stream `chunks` where given, else answer with what `whole` returns."""
    if chunks is not None:
        return EventStream(_counted(context.metrics, chunks()))

    async def reply() -> Response:
        with _load(context.metrics):
            return json_reply(await whole())

    return await unless_disconnected(request, reply())


def json_reply(reply: Reply) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")


@contextmanager
def _load(metrics: Metrics) -> Iterator[None]:
    metrics.load += 1
    try:
        yield
    finally:
        metrics.load -= 1


async def _counted(
    metrics: Metrics, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    with _load(metrics):
        async for chunk in chunks:
            yield chunk
