"""Ollama's /api/chat, /api/generate, /api/embed and /api/embeddings."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.core.vectors import check_dimensions, embedding
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.asker import asker_of
from pagoda.server.bodies.body import parse_fields, read_body, report_unknown
from pagoda.server.bodies.pooling_texts import body_texts
from pagoda.server.bodies.structure import report_unenforced
from pagoda.server.context import Context, ReplyHead, context_of
from pagoda.server.keys.account import check_manages, may_manage
from pagoda.server.ollama.errors import OllamaError
from pagoda.server.ollama.generate import generate_stream
from pagoda.server.ollama.names import known_name
from pagoda.server.ollama.options import NAMES, read_options
from pagoda.server.ollama.reply import (
    OllamaChatReply,
    OllamaGenerateReply,
    OllamaHead,
    OllamaReply,
)
from pagoda.server.ollama.translate import chat_request, generate_request
from pagoda.server.openapi import describe
from pagoda.server.pooling import PoolingJob, check_embeds
from pagoda.server.protocol.ollama import (
    OllamaBody,
    OllamaChat,
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaOptions,
    OllamaReplyMessage,
    OllamaTextBody,
)
from pagoda.server.protocol.pooling import EmbeddingRequest
from pagoda.server.replies.chat_job import chat_job
from pagoda.server.replies.respond import answer, json_reply, respond
from pagoda.server.replies.translation import errors_about, unless_refused
from pagoda.server.requestlog import log_request

router = APIRouter()


@dataclass
class _Asked:
    """A request whose model is there."""

    context: Context
    served: ServedModel
    head: OllamaHead
    options: OllamaOptions
    route: str

    def reply_head(self) -> ReplyHead:
        return ReplyHead(f"ollama-{uuid.uuid4().hex}", self.head.model)


@router.post(
    "/api/chat",
    openapi_extra=describe(OllamaChatRequest, OllamaChat, error=OllamaError, lines=OllamaChat),
)
async def chat(request: Request) -> Response:
    """A line of JSON for each piece of the reply, unless `stream` is false."""
    body = await read_body(request, OllamaChatRequest)
    if not body.messages:
        reason = await _load_or_unload(request, body)
        empty = OllamaReplyMessage()
        return json_reply(
            OllamaChat(message=empty, done=True, done_reason=reason, **_head(body).line())
        )
    asked = await _asked(request, body)
    with errors_about(NAMES):
        chat = chat_request(body, asked.options, asked.served, asked.route)
        chat.comes_from(asker_of(request.headers))
        job = await unless_refused(
            chat,
            lambda: chat_job(
                chat, asked.served, asked.reply_head(), asked.context.metrics, fits_length=True
            ),
        )
    reply = OllamaChatReply(job.stream(), asked.head)
    response = await _respond(request, asked, reply, body)
    report_unenforced(response, job.constraint)
    return response


@router.post(
    "/api/generate",
    openapi_extra=describe(
        OllamaGenerateRequest,
        OllamaGeneration,
        error=OllamaError,
        lines=OllamaGeneration,
        refusals=(501,),
    ),
)
async def generate(request: Request) -> Response:
    """A line of JSON for each piece of the reply, unless `stream` is false."""
    body = await read_body(request, OllamaGenerateRequest)
    if not (body.prompt or body.suffix or body.images):
        reason = await _load_or_unload(request, body)
        return json_reply(
            OllamaGeneration(response="", done=True, done_reason=reason, **_head(body).line())
        )
    asked = await _asked(request, body)
    with errors_about(NAMES):
        chat = generate_request(body, asked.options, asked.served, asked.route)
        chat.comes_from(asker_of(request.headers))
        stream, constraint = await generate_stream(
            body, chat, asked.served, asked.reply_head(), asked.context.metrics
        )
    tells_context = not (body.raw or body.suffix or body.images)
    reply = OllamaGenerateReply(stream, asked.head, tells_context=tells_context)
    response = await _respond(request, asked, reply, body)
    report_unenforced(response, constraint)
    return response


@router.post(
    "/api/embed", openapi_extra=describe(OllamaEmbedRequest, OllamaEmbeddings, error=OllamaError)
)
async def embed(request: Request) -> Response:
    """Vectors of length 1, one for each text."""
    body = await read_body(request, OllamaEmbedRequest)
    asked = await _asked(request, body)
    job = await _vectors(asked, body, body.input, body.dimensions, cuts=body.truncate)

    async def reply() -> OllamaEmbeddings:
        vectors = await _run(job, asked, body.dimensions, normalize=True)
        head, usage = asked.head, 0 if job is None else job.usage.prompt_tokens
        return OllamaEmbeddings(head.model, vectors, head.total_ns, head.load_ns, usage)

    return await answer(request, asked.context, reply)


@router.post(
    "/api/embeddings",
    openapi_extra=describe(OllamaEmbeddingsRequest, OllamaEmbedding, error=OllamaError),
)
async def embeddings(request: Request) -> Response:
    """The older route: one text, and its vector as the model gives it."""
    body = await read_body(request, OllamaEmbeddingsRequest)
    asked = await _asked(request, body)
    given = [body.prompt] if body.prompt else []
    job = await _vectors(asked, body, given, None, cuts=True)

    async def reply() -> OllamaEmbedding:
        vectors = await _run(job, asked, None, normalize=False)
        return OllamaEmbedding(vectors[0] if vectors else [])

    return await answer(request, asked.context, reply)


def _head(body: OllamaBody) -> OllamaHead:
    return OllamaHead(body.model)


async def _asked(request: Request, body: OllamaBody) -> _Asked:
    context, head = context_of(request), _head(body)
    name = known_name(context, body.model)
    if _unloads(body) and may_manage():
        context.unload_after(request, name)
    served = await context.served(request, name)
    head.load_seconds = time.monotonic() - head.started
    if isinstance(body, OllamaTextBody) and body.logprobs:
        head.top_logprobs = body.top_logprobs
    options = read_options(body.options, served, request.url.path)
    report_unknown(request.scope, options, "options.")
    return _Asked(context, served, head, options, request.url.path)


async def _respond(
    request: Request, asked: _Asked, reply: OllamaReply, body: OllamaTextBody
) -> Response:
    log_request(asked.context.config, reply.generation.id, reply.generation)
    return await respond(request, asked.context, reply, streamed=body.stream)


async def _load_or_unload(request: Request, body: OllamaBody) -> str:
    """What was done."""
    context = context_of(request)
    name = known_name(context, body.model)
    if _unloads(body):
        check_manages()
        drain = context.config.shutdown_timeout
        await context.fleet.unload(context.entry(name), drain_seconds=drain)
        return "unload"
    served = await context.served(request, name)
    read_options(body.options, served, request.url.path)
    return "load"


def _unloads(body: OllamaBody) -> bool:
    """Whether `keep_alive` is no time at all: 0, "0", "0s", ..."""
    kept = body.keep_alive
    return kept is not None and str(kept).rstrip("hmsunµ") in ("0", "0.0")


async def _vectors(
    asked: _Asked, body: OllamaBody, given: Any, dimensions: int | None, *, cuts: bool
) -> PoolingJob | None:
    """None where there are no texts."""
    served = asked.served
    check_embeds(served)
    ready = served.client.ready
    size = 0 if ready is None else ready.pooling.vector_size(ready.hidden_size)
    check_dimensions(dimensions, size, served.pooling)
    if not given:
        return None
    fields = {"model": body.model, "input": given, "truncate_prompt_tokens": -1 if cuts else None}
    texts = parse_fields(fields, EmbeddingRequest, asked.route)
    ids = await body_texts(served, texts)
    return PoolingJob(asked.context, served, texts, asked.reply_head(), ids)


async def _run(
    job: PoolingJob | None, asked: _Asked, dimensions: int | None, *, normalize: bool
) -> list[list[float]]:
    pooling = asked.served.pooling
    raw = [] if job is None else await job.run()
    return [embedding(one, pooling, normalize, dimensions).tolist() for one in raw]
