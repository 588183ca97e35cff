"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's words."""

import uuid

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import ContextLengthError
from pagoda.engine.served.model import ServedModel
from pagoda.server.anthropic.errors import REQUEST_ID, AnthropicError
from pagoda.server.anthropic.reply import MessageReply
from pagoda.server.anthropic.translate import NAMES, chat_request
from pagoda.server.bodies.asker import asker_of
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.structure import report_unenforced
from pagoda.server.context import Context, ReplyHead, context_of
from pagoda.server.errors import ApiError
from pagoda.server.messages import unseen_media
from pagoda.server.openapi import describe
from pagoda.server.protocol.anthropic import CountTokensRequest, MessagesRequest
from pagoda.server.protocol.anthropic_replies import EVENTS, AnthropicReply, TokenCount
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.generate import Rendered
from pagoda.server.replies.chat_job import ChatJob, chat_job, chat_prompt, render_chat
from pagoda.server.replies.render import rendered_chat
from pagoda.server.replies.respond import json_reply, respond
from pagoda.server.replies.translation import (
    errors_about,
    report_ignored,
    unless_refused,
)
from pagoda.server.requestlog import log_request

router = APIRouter()


@router.post(
    "/v1/messages",
    openapi_extra=describe(MessagesRequest, AnthropicReply, *EVENTS, error=AnthropicError),
)
async def create_message(request: Request) -> Response:
    body = await read_body(request, MessagesRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    with errors_about(NAMES):
        chat, ignored = chat_request(body, request.url.path)
        ignored = ignored + unseen_media(chat.messages, served)
        chat.comes_from(asker_of(request.headers, _user(body)))
        job = await _job(chat, served, context)
    log_request(context.config, job.head.id, job.generation)
    reply = MessageReply(job, body, request.scope.get(REQUEST_ID))
    response = await respond(request, context, reply, streamed=body.stream)
    report_unenforced(response, job.constraint)
    report_ignored(response, ignored)
    return response


@router.post(
    "/v1/messages/count_tokens",
    openapi_extra=describe(CountTokensRequest, TokenCount, error=AnthropicError),
)
async def count_tokens(request: Request) -> Response:
    body = await read_body(request, CountTokensRequest)
    served = await context_of(request).served(request, body.model)
    with errors_about(NAMES):
        chat, _ = chat_request(body, request.url.path)
        shown = await unless_refused(chat, lambda: render_chat(chat, served))
        prompt = await chat_prompt(chat, served, chat.messages, shown)
    return json_reply(TokenCount(len(prompt.ids)))


@router.post(
    "/v1/messages/render", openapi_extra=describe(MessagesRequest, Rendered, error=AnthropicError)
)
async def render_message(request: Request) -> Response:
    """What the engine would get."""
    body = await read_body(request, MessagesRequest)
    served = await context_of(request).served(request, body.model)
    with errors_about(NAMES):
        chat, _ = chat_request(body, request.url.path)
        shown = await unless_refused(chat, lambda: rendered_chat(chat, served, _head(chat, served)))
    return json_reply(shown)


async def _job(chat: ChatCompletionRequest, served: ServedModel, context: Context) -> ChatJob:
    head = _head(chat, served)
    try:
        return await unless_refused(
            chat, lambda: chat_job(chat, served, head, context.metrics, fits_length=True)
        )
    except ContextLengthError as error:
        # Agents look for these words to know that it is time to sum up.
        raise ApiError(400, f"prompt is too long: {error.message}", param="messages") from None


def _user(body: MessagesRequest) -> str | None:
    """Claude Code names its session here, too."""
    metadata = (body.model_extra or {}).get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) else None


def _head(chat: ChatCompletionRequest, served: ServedModel) -> ReplyHead:
    return ReplyHead(f"msg_{uuid.uuid4().hex}", chat.model or served.names[0])
