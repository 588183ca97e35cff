"""The models: a list with their states, loading and unloading, and news of both."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.fleet import describe as state_of
from pagoda.engine.served.model import ServedModel
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.bodies.body import read_body
from pagoda.server.context import context_of
from pagoda.server.openapi import describe
from pagoda.server.protocol.codex import CodexModel
from pagoda.server.protocol.models import ModelRequest
from pagoda.server.protocol.replies import (
    ModelArchitecture,
    ModelCard,
    ModelList,
    ModelPermission,
    ModelStatus,
    Success,
)
from pagoda.server.replies.respond import json_reply

router = APIRouter()

# Proxies drop a stream in which nothing is said for a minute.
_QUIET_SECONDS = 15.0
# It knows no others, and would not read the list.
_CODEX_MODALITIES = ("text", "image")


@router.get("/v1/models", openapi_extra=describe(None, ModelList))
@router.get("/models", openapi_extra=describe(None, ModelList))
async def list_models(request: Request) -> Response:
    named = [(entry, name) for entry in context_of(request).entries() for name in entry.names]
    return json_reply(
        ModelList(
            data=[_card(entry, name) for entry, name in named],
            models=[_codex_model(entry, name) for entry, name in named if _chats(entry)],
            first_id=named[0][1],
            last_id=named[-1][1],
        )
    )


@router.post("/models/load", openapi_extra=describe(ModelRequest, Success))
async def load_model(request: Request) -> Response:
    """Load a model, and answer at once: `/models/sse` and `/v1/models` tell how it goes on."""
    body = await read_body(request, ModelRequest)
    context = context_of(request)
    entry = context.entry(body.model)
    if entry.state == "failed":
        await context.fleet.unload(entry)
    context.fleet.begin(entry)
    return json_reply(Success())


@router.post("/models/unload", openapi_extra=describe(ModelRequest, Success))
async def unload_model(request: Request) -> Response:
    """Free a model's memory; requests that it serves may finish within --shutdown-timeout."""
    body = await read_body(request, ModelRequest)
    context = context_of(request)
    drain = context.config.shutdown_timeout
    was_loaded = await context.fleet.unload(context.entry(body.model), drain_seconds=drain)
    return json_reply(Success(was_loaded))


@router.get("/models/sse", openapi_extra=describe(None, {"text/event-stream": {}}))
async def model_events(request: Request) -> Response:
    """The state of every model, and then each change of it, as server-sent events."""
    context = context_of(request)
    context.entries()
    return StreamingResponse(
        _events(context.fleet),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache"},
    )


async def _events(fleet: Fleet) -> AsyncIterator[bytes]:
    queue = fleet.listen()
    try:
        for entry in fleet.entries:
            yield b"data: " + msgspec.json.encode(state_of(entry)) + b"\n\n"
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), _QUIET_SECONDS)
            except TimeoutError:
                yield b": quiet\n\n"
            else:
                yield b"data: " + msgspec.json.encode(event) + b"\n\n"
    finally:
        fleet.forget(queue)


@router.get("/v1/models/{name:path}", openapi_extra=describe(None, ModelCard))
async def get_model(request: Request, name: str) -> Response:
    if not name:
        return await list_models(request)
    return json_reply(_card(context_of(request).entry(name), name))


def _architecture(served: ServedModel) -> ModelArchitecture:
    return ModelArchitecture(served.modalities, ["text"] if served.generates else ["embeddings"])


def _chats(entry: ModelEntry) -> bool:
    """As far as is known: of a model that is not loaded nothing is."""
    return entry.served is None or entry.served.generates


def _codex_model(entry: ModelEntry, name: str) -> CodexModel:
    served = entry.served
    ready = served.client.ready if served is not None else None
    return CodexModel(
        slug=name,
        display_name=name,
        context_window=ready.max_model_len if ready is not None else None,
        input_modalities=["text"]
        if served is None
        else [kind for kind in served.modalities if kind in _CODEX_MODALITIES],
    )


def _card(entry: ModelEntry, name: str) -> ModelCard:
    ready = entry.served.client.ready if entry.served is not None else None
    return ModelCard(
        id=name,
        display_name=name,
        created=entry.created,
        created_at=datetime.fromtimestamp(entry.created, UTC).isoformat(),
        root=entry.config.model.model if entry.served is None else entry.served.root,
        max_model_len=ready.max_model_len if ready is not None else None,
        architecture=None if entry.served is None else _architecture(entry.served),
        permission=[ModelPermission(id=f"modelperm-{name}", created=entry.created)],
        status=ModelStatus(
            entry.state, pinned=entry.pinned, bytes=entry.planned_bytes or None, error=entry.cause
        ),
    )
