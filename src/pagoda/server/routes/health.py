"""/health, /health/live, /ping, /version, /load: what probes and load balancers ask."""

import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.core.messages import EngineProgress
from pagoda.server.context import Context, context_of
from pagoda.server.errors import RETRY_AFTER
from pagoda.server.openapi import describe, health_replies
from pagoda.server.protocol.models import LoadProgress
from pagoda.server.protocol.state import Health, Load, Version
from pagoda.server.replies.respond import json_reply
from pagoda.version import __version__

router = APIRouter()

_HEALTH = health_replies(Health)


@router.get("/health", openapi_extra=_HEALTH)
@router.get("/health/ready", openapi_extra=_HEALTH)
@router.get("/v1/health", openapi_extra=_HEALTH)
@router.get("/ping", openapi_extra=_HEALTH)
@router.post("/ping", openapi_extra=_HEALTH)
async def health(request: Request) -> Response:
    """200 with an empty body when every engine is ready; else 503 that says why."""
    return _probed(find_trouble(context_of(request)))


@router.get("/health/live", openapi_extra=_HEALTH)
async def live(request: Request) -> Response:
    """200 with an empty body while the server runs or starts, whatever its engines do; 503 when it
    ends because the first model's engine is given up."""
    first = context_of(request).fleet.entries[:1]
    over = [entry.cause for entry in first if entry.served and entry.served.client.state == "dead"]
    return _probed(Health("dead", over[0]) if over else None)


def _probed(trouble: Health | None) -> Response:
    if trouble is None:
        return Response(status_code=200)
    return Response(
        msgspec.json.encode(trouble),
        503,
        {"Retry-After": str(RETRY_AFTER)},
        media_type="application/json",
    )


@router.get("/version", openapi_extra=describe(None, Version))
async def version() -> Response:
    return json_reply(Version(__version__))


@router.get("/load", openapi_extra=describe(None, Load))
async def load(request: Request) -> Response:
    return json_reply(Load(context_of(request).metrics.load))


def find_trouble(context: Context) -> Health | None:
    if not context.fleet.entries:
        step = context.starting or EngineProgress(context.phase())
        return Health("starting", progress=_progress(step, context.began))
    for served in context.fleet.models():
        client = served.client
        if client.state == "starting":
            step = EngineProgress(client.phase)
            return Health("starting", client.cause, _progress(step, client.down_since))
        if client.state != "ready":
            return Health(client.state, client.cause)
        if client.stalled is not None:
            return Health("stalled", client.stalled)
    return None


def _progress(step: EngineProgress, began: float) -> LoadProgress:
    return LoadProgress(step.phase, step.done, step.total, round(time.monotonic() - began, 1))
