"""GET /v1/models (and /models) and GET /v1/models/{name}."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.directory import ServedModel
from pagoda.server.context import context_of
from pagoda.server.openapi import describe
from pagoda.server.protocol.replies import ModelCard, ModelList, ModelPermission
from pagoda.server.respond import json_reply

router = APIRouter()


@router.get("/v1/models", openapi_extra=describe(None, ModelList))
@router.get("/models", openapi_extra=describe(None, ModelList))
async def list_models(request: Request) -> Response:
    models = context_of(request).models()
    return json_reply(
        ModelList(data=[_card(served, name) for served in models for name in served.names])
    )


@router.get("/v1/models/{name:path}", openapi_extra=describe(None, ModelCard))
async def get_model(request: Request, name: str) -> Response:
    if not name:
        return await list_models(request)
    return json_reply(_card(context_of(request).served(name), name))


def _card(served: ServedModel, name: str) -> ModelCard:
    created = int(served.created)
    return ModelCard(
        id=name,
        created=created,
        root=served.root,
        max_model_len=served.max_model_len if served.client.ready is not None else None,
        permission=[ModelPermission(id=f"modelperm-{name}", created=created)],
    )
