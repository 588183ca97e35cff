"""/v1/responses and what is below it."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from pagoda.base.errors import RequestError
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.structure import report_unenforced
from pagoda.server.context import Context, ReplyHead, context_of
from pagoda.server.openapi import describe
from pagoda.server.protocol.generate import Rendered
from pagoda.server.protocol.response_objects import (
    EVENTS,
    DeletedResponse,
    InputTokenCount,
    ItemList,
    ResponseObject,
)
from pagoda.server.protocol.responses import CountInputRequest, ResponsesRequest
from pagoda.server.replies.chat_job import chat_prompt, render_chat
from pagoda.server.replies.render import rendered_chat
from pagoda.server.replies.respond import answer, counted, json_reply
from pagoda.server.replies.sse import ChunkStream
from pagoda.server.replies.translation import errors_about, report_ignored, unless_refused
from pagoda.server.responses.asked import asked_of, prepared
from pagoda.server.responses.registry import responses_of
from pagoda.server.responses.run import ResponseRun
from pagoda.server.responses.socket import ResponsesSocket
from pagoda.server.responses.translate import NAMES

router = APIRouter()

_PAGE, _MOST_ITEMS = 20, 100


_RESPONSE = describe(ResponsesRequest, ResponseObject, *EVENTS)


@router.post("/v1/responses", openapi_extra=_RESPONSE)
@router.post("/responses", openapi_extra=_RESPONSE)
async def create_response(request: Request) -> Response:
    body = await read_body(request, ResponsesRequest)
    context = context_of(request)
    asked = await prepared(request, body)
    run = ResponseRun(asked.builder, asked.items, context.config.sse_keep_alive_interval)
    if body.store:
        responses_of(request).keep(run)
    response = await _reply(request, body, context, run)
    report_unenforced(response, asked.constraint)
    report_ignored(response, asked.ignored)
    return response


async def _reply(
    request: Request, body: ResponsesRequest, context: Context, run: ResponseRun
) -> Response:
    if body.stream:
        during = counted(context.metrics) if body.background else _followed(context, run)
        return ChunkStream(run.chunks(0), during)
    if body.background:
        return json_reply(run.builder.snapshot())

    async def whole() -> ResponseObject:
        with _ending(run):
            await run.over()
        if run.error is not None:
            raise run.error
        return run.builder.response

    return await answer(request, context, whole)


@router.websocket("/v1/responses")
async def converse(websocket: WebSocket) -> None:
    """One response after the other over one connection."""
    await ResponsesSocket(websocket).serve()


@router.post(
    "/v1/responses/input_tokens", openapi_extra=describe(CountInputRequest, InputTokenCount)
)
async def count_input(request: Request) -> Response:
    body = await read_body(request, CountInputRequest)
    served = await context_of(request).served(request, body.model)
    asked = await asked_of(request, body, served)
    chat = asked.chat
    with errors_about(NAMES):
        shown = await unless_refused(chat, lambda: render_chat(chat, served))
        prompt = await chat_prompt(chat, served, chat.messages, shown, asked.media)
    return json_reply(InputTokenCount(input_tokens=len(prompt.ids)))


@router.post("/v1/responses/render", openapi_extra=describe(ResponsesRequest, Rendered))
async def render_response(request: Request) -> Response:
    """What the engine would get."""
    body = await read_body(request, ResponsesRequest)
    served = await context_of(request).served(request, body.model)
    asked = await asked_of(request, body, served)
    chat = asked.chat
    head = ReplyHead(f"resp_{uuid.uuid4().hex}", body.model or served.names[0])
    with errors_about(NAMES):
        shown = await unless_refused(chat, lambda: rendered_chat(chat, served, head, asked.media))
    return json_reply(shown)


@router.get("/v1/responses/{response_id}", openapi_extra=describe(None, ResponseObject, *EVENTS))
async def get_response(request: Request, response_id: str) -> Response:
    responses, query = responses_of(request), request.query_params
    streamed = query.get("stream", "false").lower() in ("true", "1")
    start = max(0, _number(query.get("starting_after", "-1"), "starting_after") + 1)
    run = responses.run(response_id)
    if streamed and run is not None:
        return ChunkStream(run.chunks(start), counted(context_of(request).metrics))
    stored = await responses.find(response_id)
    if streamed:
        chunks = _replay(stored.events, start)
        return ChunkStream(chunks, counted(context_of(request).metrics))
    return Response(stored.response, media_type="application/json")


@router.post("/v1/responses/{response_id}/cancel", openapi_extra=describe(None, ResponseObject))
async def cancel_response(request: Request, response_id: str) -> Response:
    responses = responses_of(request)
    run = responses.run(response_id)
    if run is not None:
        if not run.builder.response.background:
            raise RequestError(
                "Only a response made with background can be cancelled; close the connection of "
                "any other.",
                "background",
            )
        run.cancel()
        await run.over()
    return Response((await responses.find(response_id)).response, media_type="application/json")


@router.delete("/v1/responses/{response_id}", openapi_extra=describe(None, DeletedResponse))
async def delete_response(request: Request, response_id: str) -> Response:
    await responses_of(request).delete(response_id)
    return json_reply(DeletedResponse(id=response_id))


@router.get("/v1/responses/{response_id}/input_items", openapi_extra=describe(None, ItemList))
async def list_input_items(request: Request, response_id: str) -> Response:
    query = request.query_params
    items = msgspec.json.decode((await responses_of(request).find(response_id)).input)
    if query.get("order", "desc") != "asc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(items) if item.get("id") == after]
        items = items[places[0] + 1 :] if places else []
    limit = _number(query.get("limit", str(_PAGE)), "limit")
    page = items[: max(1, min(limit, _MOST_ITEMS))]
    return json_reply(
        ItemList(
            data=page,
            first_id=page[0].get("id") if page else None,
            last_id=page[-1].get("id") if page else None,
            has_more=len(page) < len(items),
        )
    )


@contextmanager
def _followed(context: Context, run: ResponseRun) -> Iterator[None]:
    with counted(context.metrics), _ending(run):
        yield


@contextmanager
def _ending(run: ResponseRun) -> Iterator[None]:
    """Nobody reads it afterwards, so it ends."""
    try:
        yield
    finally:
        run.cancel()


async def _replay(events: bytes, start: int) -> AsyncIterator[bytes]:
    left = events.split(b"\n\n")[start:-1]
    if left:
        yield b"\n\n".join(left) + b"\n\n"


def _number(text: str, param: str) -> int:
    try:
        return int(text[:10])
    except ValueError:
        raise RequestError(f"{param} must be a whole number.", param) from None
