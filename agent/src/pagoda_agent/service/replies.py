"""Reading a request's body, and answers that are no file and no page."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pagoda_agent.base.errors import AgentError
from pagoda_agent.task.control import StateError

_MOST_BODY = 256 << 10
T = TypeVar("T")


async def until(end: asyncio.Event, items: AsyncGenerator[T]) -> AsyncIterator[T]:
    """All items, or those until `end`."""
    ending = asyncio.ensure_future(end.wait())
    coming = asyncio.ensure_future(anext(items))
    try:
        while True:
            await asyncio.wait([ending, coming], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            yield item
            coming = asyncio.ensure_future(anext(items))
    finally:
        ending.cancel()
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()


async def body_of(request: Request, kind: type[T]) -> T:
    """The JSON body. Raises AgentError for what does not fit."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MOST_BODY:
            raise StateError("The request is too large.")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise AgentError(f"The request does not fit: {error}.") from None


def error_reply(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)
