"""POST /v1/chat/completions, its batch, and its render."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.structure import report_unenforced
from pagoda.server.context import ReplyHead, context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.protocol.chat import BatchChatRequest, ChatBody, ChatCompletionRequest
from pagoda.server.protocol.generate import Rendered
from pagoda.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from pagoda.server.replies.chat import ChatReply
from pagoda.server.replies.chat_job import batch_job, chat_job
from pagoda.server.replies.render import rendered_chat
from pagoda.server.replies.respond import json_reply, respond
from pagoda.server.requestlog import log_request

router = APIRouter()

_CHAT = describe(ChatCompletionRequest, ChatCompletion, ChatCompletionChunk)


@router.post("/v1/chat/completions", openapi_extra=_CHAT)
@router.post("/chat/completions", openapi_extra=_CHAT)
async def create_chat_completion(request: Request) -> Response:
    body = await read_body(request, ChatCompletionRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    job = await chat_job(body, served, _head(request, body, served), context.metrics)
    log_request(context.config, job.head.id, job.generation)
    response = await respond(request, context, ChatReply(job), streamed=body.stream)
    report_unenforced(response, job.constraint)
    return response


@router.post("/v1/chat/completions/batch", openapi_extra=describe(BatchChatRequest, ChatCompletion))
async def create_chat_batch(request: Request) -> Response:
    """Several conversations at once; the choices have their order."""
    body = await read_body(request, BatchChatRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    job = await batch_job(body, served, _head(request, body, served), context.metrics)
    log_request(context.config, job.head.id, job.generation)
    return await respond(request, context, ChatReply(job), streamed=False)


@router.post("/v1/chat/completions/render", openapi_extra=describe(ChatCompletionRequest, Rendered))
async def render_chat_completion(request: Request) -> Response:
    """What the engine would get."""
    body = await read_body(request, ChatCompletionRequest)
    served = await context_of(request).served(request, body.model)
    return json_reply(await rendered_chat(body, served, _head(request, body, served)))


def _head(request: Request, body: ChatBody, served: ServedModel) -> ReplyHead:
    return reply_head(request, "chatcmpl", body.request_id, body.model or served.names[0])
