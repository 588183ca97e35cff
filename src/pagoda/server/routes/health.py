"""/health, /ping, /version, /load: what probes and load balancers ask."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import Context, context_of
from pagoda.server.errors import RETRY_AFTER
from pagoda.version import __version__

router = APIRouter()


class Health(msgspec.Struct):
    status: str
    cause: str | None = None


@router.get("/health")
async def health(request: Request) -> Response:
    """200 with an empty body when every engine is ready; else 503 that says why."""
    trouble = find_trouble(context_of(request))
    if trouble is None:
        return Response(status_code=200)
    return Response(
        msgspec.json.encode(trouble),
        503,
        {"Retry-After": str(RETRY_AFTER)},
        media_type="application/json",
    )


@router.get("/ping")
@router.post("/ping", include_in_schema=False)
async def ping(request: Request) -> Response:
    return await health(request)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/load")
async def load(request: Request) -> dict[str, int]:
    return {"server_load": context_of(request).metrics.load}


def find_trouble(context: Context) -> Health | None:
    if not context.fleet.entries:
        return Health("starting")
    for served in context.fleet.models():
        if served.client.state != "ready":
            return Health(served.client.state, served.client.cause)
    return None
