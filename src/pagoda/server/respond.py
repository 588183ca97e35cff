"""The last step of a generating route: one JSON reply, or a stream of events."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import Context
from pagoda.server.generation import Generation
from pagoda.server.metrics import Metrics
from pagoda.server.sse import EventSource, EventStream, unless_disconnected

Reply = msgspec.Struct | Sequence[msgspec.Struct]


async def respond(
    request: Request,
    context: Context,
    generation: Generation,
    *,
    streamed: EventSource | None,
    whole: Callable[[], Coroutine[Any, Any, msgspec.Struct]],
) -> Response:
    """Stream the events of `streamed` where given, else answer with the struct of `whole`."""
    if streamed is not None:
        keep_alive = context.config.sse_keep_alive_interval
        return EventStream(generation, streamed, counted(context.metrics), keep_alive)

    return await answer(request, context, whole)


async def answer(
    request: Request, context: Context, whole: Callable[[], Coroutine[Any, Any, Reply]]
) -> Response:
    """Answer with what `whole` returns, which is cancelled when the client leaves."""

    async def reply() -> Response:
        with counted(context.metrics):
            return json_reply(await whole())

    return await unless_disconnected(request, reply())


def json_reply(reply: Reply) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")


@contextmanager
def counted(metrics: Metrics) -> Iterator[None]:
    """While it is entered, /load counts one reply more."""
    metrics.load += 1
    try:
        yield
    finally:
        metrics.load -= 1
