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
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.planned import PlannedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.context import context_of
from pagoda.server.keys.account import Account, asking
from pagoda.server.library.shelf import library, remove_model
from pagoda.server.library.wanted import wanted
from pagoda.server.modelfacts import ShownModel, shown_model
from pagoda.server.openapi import describe
from pagoda.server.protocol.codex import CodexModel
from pagoda.server.protocol.models import Library, ModelRequest, Removed
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
    context = context_of(request)
    entries = context.entries()
    shown = {entry: await shown_model(entry, entry.names[0]) for entry in entries}
    listed = [(entry, name) for entry in entries for name in context.names(entry)]
    named = [(entry, name) for entry, name in listed if name in entry.names]
    adapted = [(entry, name) for entry, name in listed if name not in entry.names]
    ids = [name for _, name in (*named, *adapted)]
    return json_reply(
        ModelList(
            data=[_card(shown[entry], name) for entry, name in (*named, *adapted)],
            models=[_codex_model(entry, name) for entry, name in named if shown[entry].writes],
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
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


@router.get("/models/library", openapi_extra=describe(None, Library))
async def list_library(request: Request) -> Response:
    """The server's models and those of the cache, with what is known of each from its headers."""
    return json_reply(await library(context_of(request)))


@router.post("/models/plan", openapi_extra=describe(ModelRequest, PlannedModel, refusals=(501,)))
async def plan_model(request: Request) -> Response:
    """Whether a model fits beside those that are loaded, and how fast it would be: from its headers
    alone, also of one that is still on a hub."""
    body = await read_body(request, ModelRequest)
    context = context_of(request)
    entry = wanted(context, body.model)
    return json_reply(await context.plans.plan(context.fleet, entry))


@router.post("/models/remove", openapi_extra=describe(ModelRequest, Removed))
async def delete_model(request: Request) -> Response:
    """Delete a model from the cache, as `pagoda rm` does; it must not be loaded."""
    body = await read_body(request, ModelRequest)
    return json_reply(Removed(await remove_model(context_of(request), body.model)))


@router.get("/models/sse", openapi_extra=describe(None, {"text/event-stream": {}}))
async def model_events(request: Request) -> Response:
    """The state of every model, and then each change of it, as server-sent events."""
    context = context_of(request)
    context.entries()
    return StreamingResponse(
        _events(context.fleet, asking()),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache"},
    )


async def _events(fleet: Fleet, account: Account | None) -> AsyncIterator[bytes]:
    queue = fleet.listen()
    try:
        for entry in fleet.entries:
            if account is None or account.may_use(entry.names):
                yield b"data: " + msgspec.json.encode(state_of(entry)) + b"\n\n"
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), _QUIET_SECONDS)
            except TimeoutError:
                yield b": quiet\n\n"
            else:
                if account is None or account.may_use([event["model"], *event.get("names", ())]):
                    yield b"data: " + msgspec.json.encode(event) + b"\n\n"
    finally:
        fleet.forget(queue)


@router.get("/v1/models/{name:path}", openapi_extra=describe(None, ModelCard))
async def get_model(request: Request, name: str) -> Response:
    if not name:
        return await list_models(request)
    return json_reply(_card(await shown_model(context_of(request).entry(name), name), name))


def _architecture(shown: ShownModel) -> ModelArchitecture | None:
    served = shown.entry.served
    if served is None and not shown.facts.format:
        return None
    known = {"text": True, "image": shown.sees, "audio": shown.hears}
    told = [kind for kind, takes in known.items() if takes]
    reads = told if served is None else served.modalities
    return ModelArchitecture(reads, ["text"] if shown.writes else ["embeddings"])


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


def _card(shown: ShownModel, name: str) -> ModelCard:
    entry = shown.entry
    ready = entry.served.client.ready if entry.served is not None else None
    adapters = {} if name in entry.names else entry.adapters
    root = entry.config.model.model if entry.served is None else entry.served.root
    return ModelCard(
        id=name,
        display_name=name,
        created=entry.created,
        created_at=datetime.fromtimestamp(entry.created, UTC).isoformat(),
        root=adapters.get(name, root),
        parent=entry.names[0] if name in adapters else None,
        max_model_len=ready.max_model_len if ready is not None else None,
        architecture=_architecture(shown),
        permission=[ModelPermission(id=f"modelperm-{name}", created=entry.created)],
        status=ModelStatus(
            entry.state, pinned=entry.pinned, bytes=entry.held_bytes or None, error=entry.cause
        ),
    )
