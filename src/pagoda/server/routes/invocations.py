"""POST /invocations: SageMaker's one route for everything, told apart by the body's fields."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_object
from pagoda.server.context import context_of
from pagoda.server.errors import ApiError
from pagoda.server.openapi import describe
from pagoda.server.protocol.common import Body
from pagoda.server.routes.chat import create_chat_completion
from pagoda.server.routes.completions import create_completion
from pagoda.server.routes.embeddings import create_embeddings
from pagoda.server.routes.generate import generate
from pagoda.server.routes.scores import classify, rerank, score

router = APIRouter()

Handler = Callable[[Request], Awaitable[Response]]


class InvocationRequest(Body):
    """The body of a chat, a completion, embeddings, a classification, a ranking, scores or of
    /inference/v1/generate."""


# The first whose fields are all there; `input` and a conversation depend on the model.
_BY_FIELDS: tuple[tuple[tuple[str, ...], Handler], ...] = (
    (("prompt",), create_completion),
    (("token_ids",), generate),
    (("query", "documents"), rerank),
    (("text_1", "text_2"), score),
    (("data_1", "data_2"), score),
    (("queries", "documents"), score),
    (("queries", "items"), score),
)
_REPLY = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}


@router.post("/invocations", openapi_extra=describe(InvocationRequest, _REPLY))
async def invoke(request: Request) -> Response:
    fields = await read_object(request)
    name = fields.get("model")
    served = await context_of(request).served(request, name if isinstance(name, str) else None)
    return await _handler(fields, served)(request)


def _handler(fields: dict[str, Any], served: ServedModel) -> Handler:
    if served.generates and "messages" in fields:
        return create_chat_completion
    for names, handler in _BY_FIELDS:
        if all(name in fields for name in names):
            return handler
    if "input" in fields or "messages" in fields:
        return classify if served.pooling.labels else create_embeddings
    raise ApiError(
        400,
        "This is no body of any route; send that of a chat (messages), a completion (prompt), "
        "embeddings or a classification (input), a ranking (query, documents), scores (text_1, "
        "text_2) or of /inference/v1/generate (token_ids).",
    )
