"""Adapters while the server runs: vLLM's loading and unloading, llama-server's list with scales."""

from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body, read_items
from pagoda.server.context import Context, context_of
from pagoda.server.errors import ApiError
from pagoda.server.openapi import describe
from pagoda.server.protocol.adapters import ListedLora, LoadAdapter, UnloadAdapter
from pagoda.server.protocol.common import LoraScale
from pagoda.server.protocol.replies import Success
from pagoda.server.replies.generation import check_ready
from pagoda.server.replies.respond import json_reply
from pagoda.server.routes.info import MODEL

router = APIRouter()

_TEXT = {"text/plain": {"type": "string"}}
_SCALES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"type": "array", "items": LoraScale.model_json_schema()}
            }
        },
    },
    "parameters": [MODEL],
}


@router.post("/v1/load_lora_adapter", openapi_extra=describe(LoadAdapter, _TEXT))
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter from a path on the server's machine, for requests that give its name."""
    body = await read_body(request, LoadAdapter)
    context, name = context_of(request), body.lora_name
    served = _with_room(context.loaded(body.model))
    named = served.client.adapters.named
    if context.fleet.has(name) and (name not in named or not body.load_inplace):
        told = (
            "an adapter that is loaded; send load_inplace to replace it."
            if name in named
            else "a model."
        )
        raise ApiError(400, f"The name {name!r} is that of {told}", param="lora_name")
    if not Path(body.lora_path).exists():
        raise ApiError(
            404, f"There is no adapter at {body.lora_path} on the server\'s machine.",
            param="lora_path",
        )  # fmt: skip
    await served.client.load_adapter(name, body.lora_path)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/v1/unload_lora_adapter", openapi_extra=describe(UnloadAdapter, _TEXT))
async def unload_lora_adapter(request: Request) -> Response:
    """Have no more requests choose an adapter; those that run with it finish."""
    body = await read_body(request, UnloadAdapter)
    context, name = context_of(request), body.lora_name
    owner = next((m for m in context.fleet.models() if name in m.client.adapters.named), None)
    served = _with_room(owner or context.loaded(None))
    await served.client.unload_adapter(name)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


@router.get(
    "/lora-adapters",
    openapi_extra={**describe(None, ListedLora, many=True), "parameters": [MODEL]},
)
async def list_lora_adapters(request: Request) -> Response:
    """Those of --lora and --lora-scaled, with the scales that hold for requests without `lora`."""
    served = _listing(context_of(request), request)
    return json_reply(
        [
            ListedLora(index, each.path, each.scale)
            for index, each in enumerate(served.client.adapters.listed)
        ]
    )


@router.post("/lora-adapters", openapi_extra={**describe(None, Success), **_SCALES})
async def scale_lora_adapters(request: Request) -> Response:
    """Set the scales; adapters that are left out get 0."""
    scales = await read_items(request, LoraScale)
    served = _listing(context_of(request), request)
    served.client.adapters.rescale({each.id: each.scale for each in scales})
    return json_reply(Success())


def _listing(context: Context, request: Request) -> ServedModel:
    return _with_room(context.loaded(request.query_params.get("model")))


def _with_room(served: ServedModel) -> ServedModel:
    """ApiError 400 for a server that was started without adapters, 503 while it starts."""
    if not served.client.adapters.config.enabled:
        raise ApiError(
            400, "This server has no room for adapters; start it with --enable-lora, or name some "
            "with --lora-modules or --lora.",
        )  # fmt: skip
    check_ready(served)
    return served
