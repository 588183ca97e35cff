"""The last step of a generating route: one JSON reply, or a stream of events."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import Context
from pagoda.server.metrics import Metrics
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.reply import Answer, Reply
from pagoda.server.replies.sse import EventStream, until_disconnected


async def respond(request: Request, context: Context, reply: Reply, *, streamed: bool) -> Response:
    """Stream the reply, or answer with all of it."""
    if streamed:
        during = _registered(context, reply.generation)
        return EventStream(reply, during, context.config.sse_keep_alive_interval)
    return await answer(request, context, partial(_added_up, reply), reply.generation)


async def _added_up(reply: Reply) -> Answer:
    generation = reply.generation
    with generation.started():
        while generation.running:
            await generation.arrival()
            for event in reply.stream.take():
                reply.add(event)
    return reply.whole()


async def answer(
    request: Request,
    context: Context,
    whole: Callable[[], Coroutine[Any, Any, Answer]],
    generation: Generation | None = None,
) -> Response:
    """Answer with what `whole` returns, which is cancelled when the client leaves."""

    async def reply() -> Response:
        with _registered(context, generation):
            return json_reply(await whole())

    response = await until_disconnected(request.receive, reply())
    # Nobody reads this one; 499 is how access logs say so.
    return response if response is not None else Response(status_code=499)


def json_reply(reply: Answer) -> Response:
    if isinstance(reply, str):
        return Response(reply, media_type="text/plain")
    return Response(msgspec.json.encode(reply), media_type="application/json")


@contextmanager
def _registered(context: Context, generation: Generation | None) -> Iterator[None]:
    """While it is entered, others can see the generation, and abort it."""
    running = {generation} if generation is not None else set()
    context.generations |= running
    try:
        with counted(context.metrics):
            yield
    finally:
        context.generations -= running


@contextmanager
def counted(metrics: Metrics) -> Iterator[None]:
    """While it is entered, /load counts one reply more."""
    metrics.load += 1
    try:
        yield
    finally:
        metrics.load -= 1
