"""GET /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import context_of
from pagoda.server.openapi import describe

router = APIRouter()


_TEXT = {"text/plain": {"schema": {"type": "string"}}}


@router.get("/metrics", openapi_extra=describe(None, _TEXT))
async def metrics(request: Request) -> Response:
    context = context_of(request)
    # When counters began at zero, as llama-server tells it.
    began = {"Process-Start-Time-Unix": str(int(context.start_time))}
    headers = {"Content-Type": CONTENT_TYPE_LATEST, **began}
    return Response(context.metrics.render(), headers=headers)
