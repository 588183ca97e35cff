"""POST /v1/embeddings, /pooling and llama-server's /embedding."""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.vectors import Vector, check_dimensions, embedding, scores, token_embeddings
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.pooling_texts import body_texts, input_texts
from pagoda.server.context import ReplyHead, context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.pooling import PoolingJob, check_classifies, check_embeds
from pagoda.server.protocol.pooling import (
    EmbeddingRequest,
    NativeEmbeddingRequest,
    PoolingRequest,
    VectorBody,
)
from pagoda.server.protocol.vectors import (
    Embedding,
    Embeddings,
    NativeEmbedding,
    Pooled,
    PooledList,
)
from pagoda.server.replies.respond import answer

router = APIRouter()

_INT16_SCALE = 32760.0  # llama.cpp's, common_embd_normalize


@router.post("/v1/embeddings", openapi_extra=describe(EmbeddingRequest, Embeddings))
async def create_embeddings(request: Request) -> Response:
    body = await read_body(request, EmbeddingRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    check_embeds(served)
    check_dimensions(body.dimensions, _size(served), served.pooling)
    head = _head(request, "embd", body, served)
    job = PoolingJob(context, served, body, head, await body_texts(served, body))

    async def reply() -> Embeddings:
        data = [
            Embedding(index=index, embedding=_coded(_vector(raw, served, body), body))
            for index, raw in enumerate(await job.run())
        ]
        return Embeddings(**_fields(head), data=data, usage=job.usage)

    return await answer(request, context, reply)


@router.post("/pooling", openapi_extra=describe(PoolingRequest, PooledList))
async def pool(request: Request) -> Response:
    body = await read_body(request, PoolingRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    task = body.task or ("classify" if served.pooling.labels else "embed")
    if task == "classify":
        check_classifies(served)
    else:
        check_embeds(served)
        check_dimensions(body.dimensions, _size(served), served.pooling)
    head = _head(request, "pool", body, served)
    job = PoolingJob(context, served, body, head, await body_texts(served, body), task)

    async def reply() -> PooledList:
        data = [
            Pooled(index=index, data=_coded(_pooled(raw, task, served, body), body))
            for index, raw in enumerate(await job.run())
        ]
        return PooledList(**_fields(head), data=data, usage=job.usage)

    return await answer(request, context, reply)


_NATIVE = describe(NativeEmbeddingRequest, NativeEmbedding, many=True)


@router.post("/embedding", openapi_extra=_NATIVE)
@router.post("/embeddings", openapi_extra=_NATIVE)
async def create_native_embeddings(request: Request) -> Response:
    """In llama-server's words."""
    body = await read_body(request, NativeEmbeddingRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    check_embeds(served)
    if (body.content is None) == (body.input is None):
        raise RequestError("Send one of content and input.", "content")
    given, name = (body.input, "input") if body.content is None else (body.content, "content")
    head = _head(request, "embd", body, served)
    job = PoolingJob(context, served, body, head, await input_texts(served, body, given, name))

    async def reply() -> list[NativeEmbedding]:
        return [
            NativeEmbedding(index=index, embedding=[_scaled(raw, body.embd_normalize).tolist()])
            for index, raw in enumerate(await job.run())
        ]

    return await answer(request, context, reply)


def _head(request: Request, prefix: str, body: Any, served: ServedModel) -> ReplyHead:
    return reply_head(request, prefix, body.request_id, body.model or served.names[0])


def _fields(head: ReplyHead) -> dict[str, Any]:
    return {"id": head.id, "created": head.created, "model": head.model}


def _size(served: ServedModel) -> int:
    ready = served.client.ready
    return 0 if ready is None else ready.pooling.vector_size(ready.hidden_size)


def _normalize(body: VectorBody) -> bool | None:
    return body.use_activation if body.normalize is None else body.normalize


def _vector(raw: bytes, served: ServedModel, body: VectorBody) -> Vector:
    return embedding(raw, served.pooling, _normalize(body), body.dimensions)


def _pooled(raw: bytes, task: str, served: ServedModel, body: PoolingRequest) -> Vector:
    if task == "classify":
        return scores(raw, served.pooling, body.use_activation)
    if task == "token_embed":
        size = 0 if served.client.ready is None else served.client.ready.hidden_size
        return token_embeddings(raw, size, served.pooling, _normalize(body))
    return _vector(raw, served, body)


def _coded(vector: Vector, body: VectorBody) -> Any:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


def _scaled(raw: bytes, norm: int) -> Vector:
    vector = np.frombuffer(raw, np.float32).astype(np.float64)
    largest = np.abs(vector).max()
    if norm == -1 or largest == 0:
        return vector.astype(np.float32)
    vector /= largest  # so that no power overflows
    scale = 1 / _INT16_SCALE if norm == 0 else np.sum(np.abs(vector) ** norm) ** (1 / norm)
    return (vector / scale).astype(np.float32)
