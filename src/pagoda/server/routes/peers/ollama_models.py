"""Ollama's routes about models: /api/tags, /api/show, /api/ps and /api/version."""

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.config.server import ServerConfig
from pagoda.server.bodies.body import read_body
from pagoda.server.context import context_of
from pagoda.server.modelfacts import ShownModel, shown_model, shown_models
from pagoda.server.ollama.errors import OllamaError
from pagoda.server.ollama.names import known_name
from pagoda.server.ollama.options import NAMES
from pagoda.server.ollama.reply import timestamp
from pagoda.server.openapi import describe
from pagoda.server.protocol.ollama import (
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaRunningModel,
    OllamaRunningModels,
    OllamaShown,
    OllamaShowRequest,
    OllamaVersion,
)
from pagoda.server.replies.respond import json_reply

router = APIRouter()

# Clients compare it with the one that brought what they need.
_SPOKEN = "0.12.6"
_NEVER = 100 * 365 * 24 * 3600.0


@router.get("/api/version", openapi_extra=describe(None, OllamaVersion, error=OllamaError))
async def version() -> Response:
    """The version of Ollama whose API this is; Pagoda's own is at /version."""
    return json_reply(OllamaVersion(_SPOKEN))


@router.get("/api/tags", openapi_extra=describe(None, OllamaModels, error=OllamaError))
async def tags(request: Request) -> Response:
    """All models, loaded or not."""
    models = await shown_models(context_of(request).models())
    return json_reply(OllamaModels([_listed(model) for model in models]))


@router.get("/api/ps", openapi_extra=describe(None, OllamaRunningModels, error=OllamaError))
async def running(request: Request) -> Response:
    """The models that are loaded."""
    context = context_of(request)
    loaded = [entry for entry in context.models() if entry.served is not None]
    models = [await shown_model(entry, entry.names[0]) for entry in loaded]
    return json_reply(OllamaRunningModels([_running(model, context.config) for model in models]))


@router.post("/api/show", openapi_extra=describe(OllamaShowRequest, OllamaShown, error=OllamaError))
async def show(request: Request) -> Response:
    """What a model is and can do; `<architecture>.context_length` is what a request can have."""
    body = await read_body(request, OllamaShowRequest)
    context = context_of(request)
    name = known_name(context, body.model)
    model = await shown_model(context.entry(name), name)
    parameters = _parameters(model)
    return json_reply(
        OllamaShown(
            modelfile="\n".join(
                [f"FROM {name}", *(f"PARAMETER {key} {value}" for key, value in parameters)]
            ),
            parameters="\n".join(f"{key:<30} {value}" for key, value in parameters),
            template=model.template,
            details=_details(model),
            model_info=_info(model),
            capabilities=_capabilities(model),
            modified_at=_modified(model),
        )
    )


def _listed(model: ShownModel) -> OllamaModel:
    return OllamaModel(
        name=model.name,
        model=model.name,
        modified_at=_modified(model),
        size=model.facts.nbytes,
        digest=model.facts.digest,
        details=_details(model),
    )


def _running(model: ShownModel, config: ServerConfig) -> OllamaRunningModel:
    entry = model.entry
    ready = entry.served.client.ready if entry.served is not None else None
    size = entry.held_bytes
    left = config.idle_unload - entry.idle_seconds if config.idle_unload > 0 else _NEVER
    return OllamaRunningModel(
        name=model.name,
        model=model.name,
        size=size,
        digest=model.facts.digest,
        details=_details(model),
        expires_at=timestamp(time.time() + (_NEVER if entry.pinned else left)),
        size_vram=0 if ready is None or ready.device == "cpu" else size,
        context_length=model.context_length,
    )


def _modified(model: ShownModel) -> str:
    return timestamp(model.facts.modified or model.entry.created)


def _details(model: ShownModel) -> OllamaDetails:
    facts = model.facts
    return OllamaDetails(
        format=facts.format,
        family=facts.architecture,
        families=[facts.architecture],
        parameter_size=facts.parameters,
        quantization_level=facts.quantization,
    )


def _info(model: ShownModel) -> dict[str, Any]:
    facts = model.facts
    sizes = {**facts.sizes, "context_length": model.context_length}
    return {
        "general.architecture": facts.architecture,
        "general.basename": model.name,
        "general.parameter_count": facts.num_parameters,
        **{f"{facts.architecture}.{name}": value for name, value in sizes.items()},
    }


def _parameters(model: ShownModel) -> list[tuple[str, Any]]:
    """What holds where a request says nothing."""
    found: list[tuple[str, Any]] = [("num_ctx", model.context_length)]
    served = model.entry.served
    if served is None:
        return found
    found += [
        (NAMES.get(name, name), value)
        for name, value in sorted(served.defaults.items())
        if isinstance(value, int | float)
    ]
    eos = served.tokenizer.special_token_names.get("eos_token", "")
    return [*found, ("stop", f'"{eos}"')] if eos and model.writes else found


def _capabilities(model: ShownModel) -> list[str]:
    if not model.writes:
        return ["embedding"]
    able = {
        "completion": True,
        "tools": model.calls_tools,
        "insert": model.fills_in,
        "vision": model.sees,
        "thinking": model.thinks,
    }
    return [name for name, holds in able.items() if holds]
