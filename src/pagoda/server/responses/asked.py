"""What a request for a response asks for, and all that writing it needs."""

import time
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from starlette.requests import HTTPConnection

from pagoda.base.errors import RequestError
from pagoda.engine.constraint import Constraint
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.asker import asker_of
from pagoda.server.context import ReplyHead, context_of
from pagoda.server.media import MediaLoader
from pagoda.server.messages import unseen_media
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.response_objects import ResponseObject
from pagoda.server.protocol.responses import CountInputRequest, ResponsesRequest
from pagoda.server.replies.chat_job import ChatJob, chat_job
from pagoda.server.replies.translation import errors_about, unless_refused
from pagoda.server.requestlog import log_request
from pagoda.server.responses.builder import ResponseBuilder
from pagoda.server.responses.fit import drop_oldest
from pagoda.server.responses.registry import responses_of
from pagoda.server.responses.store import Stored
from pagoda.server.responses.tools import Toolbox
from pagoda.server.responses.translate import NAMES, chat_request, input_items

_NONE: Mapping[str, Stored] = MappingProxyType({})


class Asked(NamedTuple):
    chat: ChatCompletionRequest
    """The request as one of the chat API."""
    toolbox: Toolbox
    ignored: list[str]
    """What of it does nothing here."""
    items: list[dict[str, Any]]
    """Its input."""
    media: MediaLoader
    """What has loaded its pictures."""


class Prepared(NamedTuple):
    builder: ResponseBuilder
    items: list[dict[str, Any]]
    """The input."""
    ignored: list[str]
    constraint: Constraint


async def asked_of(
    connection: HTTPConnection,
    body: CountInputRequest,
    served: ServedModel,
    unstored: Mapping[str, Stored] = _NONE,
) -> Asked:
    """`unstored`: earlier responses that are known beside those that are kept."""
    media, responses = MediaLoader(served), responses_of(connection)
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = await responses.conversation(body.previous_response_id, unstored)
    items = await responses.resolve(input_items(body))
    with errors_about(NAMES):
        chat, toolbox, ignored = chat_request(body, earlier, items, connection.url.path)
        ignored = ignored + unseen_media(chat.messages, served)
        if body.truncation == "auto":
            await unless_refused(chat, lambda: drop_oldest(chat, served, media))
    return Asked(chat, toolbox, ignored, items, media)


async def prepared(
    connection: HTTPConnection, body: ResponsesRequest, unstored: Mapping[str, Stored] = _NONE
) -> Prepared:
    """All that writing the response needs; nothing has reached the engine yet."""
    context = context_of(connection)
    if body.background and not body.store:
        raise RequestError("background needs store to be true.", "background")
    if body.background:
        responses_of(connection).check_room()
    served = await context.served(connection, body.model)
    chat, toolbox, ignored, items, media = await asked_of(connection, body, served, unstored)
    chat.comes_from(asker_of(connection.headers, body.prompt_cache_key))
    head = ReplyHead(f"resp_{uuid.uuid4().hex}", body.model or served.names[0])
    with errors_about(NAMES):
        job = await unless_refused(
            chat,
            lambda: chat_job(chat, served, head, context.metrics, fits_length=True, media=media),
        )
    log_request(context.config, head.id, job.generation)
    builder = ResponseBuilder(job, body, _new_response(job, body), toolbox)
    return Prepared(builder, items, ignored, job.constraint)


def _new_response(job: ChatJob, body: ResponsesRequest) -> ResponseObject:
    sampling = job.generation.sampling
    return ResponseObject(
        id=job.head.id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=body.background,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata,
        model=job.head.model,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": body.reasoning.effort, "summary": body.reasoning.summary},
        safety_identifier=body.safety_identifier,
        service_tier=body.service_tier,
        store=body.store,
        temperature=sampling.temperature,
        text={"format": body.text.format or {"type": "text"}},
        tool_choice=body.tool_choice,
        tools=body.tools,
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation,
        user=body.user,
    )
