"""vLLM's sleep mode: memory back while a model is not needed, without stopping the server."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.context import context_of
from pagoda.server.errors import ApiError
from pagoda.server.openapi import describe, query
from pagoda.server.protocol.state import SleepState
from pagoda.server.replies.respond import json_reply
from pagoda.server.routes.info import MODEL

router = APIRouter()

_LEVELS = {"1": 1, "2": 2}
_MODES = ("abort", "wait")
_LEVEL = query("level", "integer", "1 (default) keeps the weights in memory, 2 drops them too.")
_MODE = query(
    "mode", "string", "`abort` (default) ends requests with an error, `wait` lets them end."
)


@router.post(
    "/sleep", openapi_extra={**describe(None, SleepState), "parameters": [_LEVEL, _MODE, MODEL]}
)
async def sleep(request: Request) -> Response:
    """Give a model's memory back. Until /wake_up its requests get a 503 with Retry-After."""
    level = _LEVELS.get(request.query_params.get("level", "1"))
    mode = request.query_params.get("mode", "abort")
    if level is None:
        raise ApiError(400, "level is 1 (the weights stay in memory) or 2.", param="level")
    if mode not in _MODES:
        raise ApiError(400, "mode is `abort` or `wait`.", param="mode")
    entry = _entry(request)
    await context_of(request).fleet.sleep(entry, level, wait=mode == "wait")
    return json_reply(SleepState(entry.asleep > 0))


@router.post("/wake_up", openapi_extra={**describe(None, SleepState), "parameters": [MODEL]})
async def wake_up(request: Request) -> Response:
    """Have a model serve again; the answer comes when it does."""
    entry = _entry(request)
    await context_of(request).fleet.wake(entry)
    return json_reply(SleepState(entry.asleep > 0))


@router.get("/is_sleeping", openapi_extra={**describe(None, SleepState), "parameters": [MODEL]})
async def is_sleeping(request: Request) -> Response:
    return json_reply(SleepState(_entry(request).asleep > 0))


def _entry(request: Request) -> ModelEntry:
    return context_of(request).entry(request.query_params.get("model"))
