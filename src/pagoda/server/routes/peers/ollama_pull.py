"""Ollama's /api/pull: a model is fetched, and can then be asked for."""

from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import PagodaError
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.bodies.body import read_body
from pagoda.server.context import Context, context_of
from pagoda.server.errors import to_api_error
from pagoda.server.library.wanted import fetch, wanted
from pagoda.server.ollama.errors import OllamaError, error_reply
from pagoda.server.openapi import describe
from pagoda.server.protocol.ollama import OllamaProgress, OllamaPullRequest
from pagoda.server.replies.respond import answer, counted
from pagoda.server.replies.sse import ChunkStream

router = APIRouter()

_LATEST = ":latest"
_BEGUN, _DONE = OllamaProgress(status="pulling manifest"), OllamaProgress(status="success")


@router.post(
    "/api/pull",
    openapi_extra=describe(
        OllamaPullRequest,
        OllamaProgress,
        error=OllamaError,
        lines=OllamaProgress,
        refusals=(502,),
    ),
)
async def pull(request: Request) -> Response:
    """Fetch a model of a hub; a line of JSON tells how far each of its files is."""
    body = await read_body(request, OllamaPullRequest)
    context = context_of(request)
    entry = wanted(context, body.model.removesuffix(_LATEST))
    if body.stream:
        lines = ChunkStream(_lines(context, entry), counted(context.metrics))
        lines.headers["content-type"] = "application/x-ndjson"
        return lines

    async def fetched() -> OllamaProgress:
        async for _ in fetch(context, entry):
            pass
        return _DONE

    return await answer(request, context, fetched)


async def _lines(context: Context, entry: ModelEntry) -> AsyncIterator[bytes]:
    yield _encode(_BEGUN)
    try:
        async for part in fetch(context, entry):
            yield _encode(
                OllamaProgress(
                    status=f"pulling {part.name}",
                    digest=part.name,
                    total=part.total,
                    completed=part.done,
                )
            )
    except PagodaError as error:
        yield error_reply(str(to_api_error(error))) + b"\n"
    else:
        yield _encode(_DONE)


def _encode(line: OllamaProgress) -> bytes:
    return msgspec.json.encode(line) + b"\n"
