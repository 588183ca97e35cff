"""POST /v1/chat/completions, its batch, and its render."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.body import read_body
from pagoda.server.chat import ChatJob, StreamedChat, WholeChat
from pagoda.server.context import Context, context_of, reply_head
from pagoda.server.generation import Generation
from pagoda.server.messages import chat_ids, chat_prompt, final_text
from pagoda.server.openapi import describe
from pagoda.server.params import chat_params
from pagoda.server.protocol.chat import (
    BatchChatRequest,
    ChatBody,
    ChatCompletionRequest,
    ChatMessage,
)
from pagoda.server.protocol.generate import Rendered
from pagoda.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from pagoda.server.render import rendered
from pagoda.server.requestlog import log_request
from pagoda.server.respond import answer, json_reply, respond

router = APIRouter()

_CHAT = describe(ChatCompletionRequest, ChatCompletion, ChatCompletionChunk)


@router.post("/v1/chat/completions", openapi_extra=_CHAT)
@router.post("/chat/completions", openapi_extra=_CHAT)
async def create_chat_completion(request: Request) -> Response:
    body = await read_body(request, ChatCompletionRequest)
    context = context_of(request)
    job = await _job(request, context, body, [body.messages])
    return await respond(
        request,
        context,
        job.generation,
        streamed=StreamedChat(job) if body.stream else None,
        whole=WholeChat(job).reply,
    )


@router.post("/v1/chat/completions/batch", openapi_extra=describe(BatchChatRequest, ChatCompletion))
async def create_chat_batch(request: Request) -> Response:
    """Several conversations at once; the choices have their order."""
    body = await read_body(request, BatchChatRequest)
    context = context_of(request)
    job = await _job(request, context, body, body.messages)
    return await answer(request, context, WholeChat(job).reply, job.generation)


@router.post("/v1/chat/completions/render", openapi_extra=describe(ChatCompletionRequest, Rendered))
async def render_chat_completion(request: Request) -> Response:
    """What the engine would get."""
    body = await read_body(request, ChatCompletionRequest)
    served = context_of(request).served(body.model)
    sampling = chat_params(body, served)
    ids = await chat_ids(served, body, await chat_prompt(served, body, body.messages))
    head = reply_head(request, "chatcmpl", body.request_id, body.model or served.names[0])
    return json_reply(rendered(served, ids, sampling, body, head))


async def _job(
    request: Request, context: Context, body: ChatBody, conversations: list[list[ChatMessage]]
) -> ChatJob:
    served = context.served(body.model)
    sampling = chat_params(body, served)
    prompts, ids = [], []
    for messages in conversations:
        prompt = await chat_prompt(served, body, messages)
        ids.append(await chat_ids(served, body, prompt))
        prompts.append(prompt)
        if len(conversations) > 1:
            await asyncio.sleep(0)  # a thousand take a second, and others want theirs
    head = reply_head(request, "chatcmpl", body.request_id, body.model or served.names[0])
    shown = served.text.markup_ids
    generation = Generation(served, ids, sampling, body, head.id, context.metrics, shown)
    log_request(context.config, head.id, generation)
    echoed = [final_text(messages) for messages in conversations] if body.echo else []
    return ChatJob(body, served, generation, head, prompts, echoed)
