"""LM Studio's lists of models, /api/v1/models and the older /api/v0/models, and one model of
each."""

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import context_of
from pagoda.server.modelfacts import ShownModel, shown_model, shown_models
from pagoda.server.ollama.errors import OllamaError
from pagoda.server.openapi import describe
from pagoda.server.protocol.models import (
    StudioAbilities,
    StudioCard,
    StudioCards,
    StudioInstance,
    StudioLoad,
    StudioModel,
    StudioModels,
    StudioQuantization,
)
from pagoda.server.replies.respond import json_reply

router = APIRouter()


@router.get("/api/v1/models", openapi_extra=describe(None, StudioModels, error=OllamaError))
async def list_models(request: Request) -> Response:
    models = await shown_models(context_of(request).models())
    return json_reply(StudioModels([_model(model) for model in models]))


@router.get(
    "/api/v1/models/{name:path}", openapi_extra=describe(None, StudioModel, error=OllamaError)
)
async def get_model(request: Request, name: str) -> Response:
    return json_reply(_model(await shown_model(context_of(request).entry(name), name)))


@router.get("/api/v0/models", openapi_extra=describe(None, StudioCards, error=OllamaError))
async def list_cards(request: Request) -> Response:
    models = await shown_models(context_of(request).models())
    return json_reply(StudioCards([_card(model) for model in models]))


@router.get(
    "/api/v0/models/{name:path}", openapi_extra=describe(None, StudioCard, error=OllamaError)
)
async def get_card(request: Request, name: str) -> Response:
    return json_reply(_card(await shown_model(context_of(request).entry(name), name)))


def _model(model: ShownModel) -> StudioModel:
    facts, served = model.facts, model.entry.served
    ready = None if served is None else served.client.ready
    load = None if ready is None else StudioLoad(model.context_length, ready.max_num_seqs)
    return StudioModel(
        type="llm" if model.writes else "embedding",
        publisher=_publisher(model),
        key=model.name,
        display_name=model.name,
        architecture=facts.architecture,
        quantization=StudioQuantization(facts.quantization or None, facts.bits),
        size_bytes=facts.nbytes,
        params_string=facts.parameters or None,
        loaded_instances=[] if load is None else [StudioInstance(model.name, load)],
        max_context_length=model.context_length,
        format="gguf" if facts.format == "gguf" else None,
        capabilities=StudioAbilities(model.sees, model.knows_tools) if model.writes else UNSET,
    )


def _card(model: ShownModel) -> StudioCard:
    kind = "embeddings"
    if model.writes:
        kind = "vlm" if model.sees else "llm"
    loaded = model.entry.state == "loaded"
    return StudioCard(
        id=model.name,
        type=kind,
        publisher=_publisher(model),
        arch=model.facts.architecture,
        compatibility_type=model.facts.format,
        quantization=model.facts.quantization,
        state="loaded" if loaded else "not-loaded",
        max_context_length=model.context_length,
        loaded_context_length=model.context_length if loaded else UNSET,
        capabilities=["tool_use"] if model.knows_tools else [],
    )


def _publisher(model: ShownModel) -> str:
    """Who the model's name says published it."""
    return model.name.partition("/")[0] if "/" in model.name.strip("/") else "pagoda"
