"""What the server and its models are: /server_info, /tokenizer_info; /reset_prefix_cache."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.served.model import ServedModel
from pagoda.server.context import context_of
from pagoda.server.openapi import describe, query
from pagoda.server.protocol.state import CacheReset, ModelInfo, ServerInfo, TokenizerInfo
from pagoda.server.replies.generation import check_ready
from pagoda.server.replies.respond import json_reply
from pagoda.version import __version__

router = APIRouter()

MODEL = query("model", "string", "Which model, where there are several.")


@router.get("/server_info", openapi_extra=describe(None, ServerInfo))
async def server_info(request: Request) -> Response:
    models = context_of(request).fleet.models()
    return json_reply(ServerInfo(version=__version__, models=[_model(m) for m in models]))


@router.get(
    "/tokenizer_info", openapi_extra={**describe(None, TokenizerInfo), "parameters": [MODEL]}
)
async def tokenizer_info(request: Request) -> Response:
    served = context_of(request).loaded(request.query_params.get("model"))
    tokenizer, template = served.tokenizer, served.chat_template
    return json_reply(
        TokenizerInfo(
            tokenizer_class=type(tokenizer).__name__,
            vocab_size=tokenizer.vocab_size,
            model_max_length=served.max_model_len,
            special_tokens=dict(tokenizer.special_token_names),
            eos_token_ids=sorted(tokenizer.eos_token_ids),
            chat_template=None if template is None else template.source,
        )
    )


@router.post("/reset_prefix_cache", openapi_extra=describe(None, CacheReset))
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached prefixes; fails while requests hold blocks."""
    models = context_of(request).fleet.models()
    for served in models:
        check_ready(served)
    done = [await served.client.call("reset_prefix_cache") for served in models]
    return json_reply(CacheReset(all(done)))


def _model(served: ServedModel) -> ModelInfo:
    ready = served.client.ready
    return ModelInfo(
        names=list(served.names),
        root=served.root,
        state=served.client.state,
        max_model_len=served.max_model_len,
        generates=served.generates,
        engine=None if ready is None else msgspec.structs.asdict(ready),
    )
