"""/openapi.json: request schemas from pydantic, reply schemas from msgspec."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pagoda.server.anthropic.errors import AnthropicError
from pagoda.server.errors import ErrorReply
from pagoda.server.protocol import (
    anthropic_replies,
    pooling,
    replies,
    response_objects,
    vectors,
)
from pagoda.server.protocol.anthropic import CountTokensRequest, MessagesRequest
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.completions import CompletionRequest
from pagoda.server.protocol.models import ModelRequest
from pagoda.server.protocol.responses import CountInputRequest, ResponsesRequest
from pagoda.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from pagoda.version import __version__

_REF = "#/components/schemas/"
_REQUESTS: tuple[type[BaseModel], ...] = (
    ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, ModelRequest,
    pooling.EmbeddingRequest, pooling.PoolingRequest, pooling.ClassifyRequest,
    pooling.ScoreRequest, pooling.RerankRequest, pooling.NativeEmbeddingRequest,
    MessagesRequest, CountTokensRequest, ResponsesRequest, CountInputRequest,
)  # fmt: skip
_REPLIES: tuple[type[msgspec.Struct], ...] = (
    replies.ChatCompletion, replies.ChatCompletionChunk, replies.Completion,
    replies.CompletionChunk, replies.ModelCard, replies.ModelList, replies.Success, replies.Tokens,
    replies.Text,
    vectors.Embeddings, vectors.PooledList, vectors.Classifications, vectors.Scores,
    vectors.Ranking, vectors.NativeEmbedding, ErrorReply, AnthropicError,
    anthropic_replies.AnthropicReply, anthropic_replies.TokenCount, *anthropic_replies.EVENTS,
    response_objects.ResponseObject, response_objects.DeletedResponse, response_objects.ItemList,
    response_objects.InputTokenCount, *response_objects.EVENTS,
)  # fmt: skip


def describe(
    request: type[BaseModel] | None,
    reply: type[msgspec.Struct],
    *chunks: type[msgspec.Struct],
    many: bool = False,
    error: type[msgspec.Struct] = ErrorReply,
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads and writes its bodies itself. `chunks`: what a stream
    is made of; with `many` the reply is a list."""
    content = {"application/json": _reference(reply)}
    if many:
        content = {"application/json": {"schema": {"type": "array", "items": _ref(reply)}}}
    if chunks:
        content["text/event-stream"] = {"schema": {"anyOf": [_ref(chunk) for chunk in chunks]}}
    extra: dict[str, Any] = {
        "responses": {
            "200": {"description": "The reply.", "content": content},
            "4XX": {
                "description": "What is wrong with the request.",
                "content": {"application/json": _reference(error)},
            },
        }
    }
    if request is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": _reference(request)},
        }
    return extra


def _reference(model: type) -> dict[str, Any]:
    return {"schema": _ref(model)}


def _ref(model: type) -> dict[str, Any]:
    return {"$ref": _REF + model.__name__}


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """The document; FastAPI keeps what it is given in `app.openapi_schema`."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title="Pagoda API", version=__version__, routes=app.routes,
            description="OpenAI's API, served by Pagoda.",
        )  # fmt: skip
        _, requests = models_json_schema(
            [(model, "validation") for model in _REQUESTS], ref_template=_REF + "{model}"
        )
        _, structs = msgspec.json.schema_components(_REPLIES, ref_template=_REF + "{name}")
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        components.update(requests.get("$defs", {}))
        components.update(structs)
        app.openapi_schema = schema
    return app.openapi_schema
