"""GET /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import context_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(
        context_of(request).metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
