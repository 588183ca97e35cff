"""Ollama's /api/pull: a model is fetched, and can then be asked for."""

from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import ModelNotFoundError, PagodaError, SourceError
from pagoda.config.server import configured_keys
from pagoda.engine.served.entries import model_entry
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.bodies.body import read_body
from pagoda.server.context import Context, context_of
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.fetches import FetchedPart
from pagoda.server.http.listen import is_loopback_host
from pagoda.server.ollama.errors import OllamaError, error_reply
from pagoda.server.openapi import describe
from pagoda.server.protocol.ollama import OllamaProgress, OllamaPullRequest
from pagoda.server.replies.respond import answer, counted
from pagoda.server.replies.sse import ChunkStream
from pagoda.weights.source import parse_ref

router = APIRouter()

_LATEST = ":latest"
_HUBS = ("hf.co/", "huggingface.co/")
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
    entry = _wanted(context, body.model)
    if body.stream:
        lines = ChunkStream(_lines(context, entry), counted(context.metrics))
        lines.headers["content-type"] = "application/x-ndjson"
        return lines

    async def fetched() -> OllamaProgress:
        async for _ in _fetch(context, entry):
            pass
        return _DONE

    return await answer(request, context, fetched)


async def _lines(context: Context, entry: ModelEntry) -> AsyncIterator[bytes]:
    yield _encode(_BEGUN)
    try:
        async for part in _fetch(context, entry):
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


async def _fetch(context: Context, entry: ModelEntry) -> AsyncIterator[FetchedPart]:
    """Raises ApiError 502 where the hub does not give it."""
    try:
        async for part in context.fetches.follow(entry.config.model):
            yield part
    except SourceError as error:
        raise ApiError(502, str(error), param="model") from error
    if entry not in context.fleet.entries:
        try:
            context.fleet.find(entry.names[0])
        except ModelNotFoundError:
            context.fleet.add(entry)


def _wanted(context: Context, name: str) -> ModelEntry:
    """One of the server's models, or one that is to become another; ApiError for what is none."""
    name = name.removesuffix(_LATEST)
    entries = context.entries()
    try:
        return context.fleet.find(name)
    except ModelNotFoundError:
        pass
    config = context.config
    alone = config.uds is not None or is_loopback_host(config.host)
    if not alone and not configured_keys(config):
        raise ApiError(
            403,
            "This server is open to the network and has no key, so nobody may have it fetch "
            "further models; start it with --api-key, or with the model.",
        )
    first = entries[0].config
    # Another model has revisions of its own.
    like = replace(first, model=replace(first.model, revision=None))
    return model_entry(like, (name,), _reference(name))


def _reference(name: str) -> str:
    """What stands for the model on a hub. Nothing is told of the server's files: a path is no
    model."""
    ref = name
    for hub in _HUBS:
        if name.startswith(hub):
            ref = "hf:" + name.removeprefix(hub)
    try:
        if not ref.startswith(("/", ".", "~")) and parse_ref(ref).kind != "local":
            return ref
    except SourceError:
        pass
    raise ApiError(
        404,
        f"{name[:200]!r} is no model of a hub; write org/name, hf:org/name:QUANT or "
        "modelscope:org/name.",
        param="model",
    )


def _encode(line: OllamaProgress) -> bytes:
    return msgspec.json.encode(line) + b"\n"
