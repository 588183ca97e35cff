"""The HTTP application: routes, and what every request passes before it gets there."""

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from pagoda.base.log import get_logger
from pagoda.config.server import ServerConfig, asks_for_key, configured_keys
from pagoda.engine.served.fleet import Fleet
from pagoda.planner.planned import Advice
from pagoda.server.context import Context
from pagoda.server.errors import install_handlers
from pagoda.server.http.auth import AuthMiddleware
from pagoda.server.http.middleware import (
    BodyLimitMiddleware,
    HeadMiddleware,
    LeaseMiddleware,
    RequestLogMiddleware,
    RootPathMiddleware,
)
from pagoda.server.http.webguard import WebGuardMiddleware, allowed_hosts, local_origins
from pagoda.server.openapi import build_openapi
from pagoda.server.responses.registry import Responses
from pagoda.server.responses.store import ResponseStore
from pagoda.server.routes import (
    adapters,
    chat,
    completions,
    docs,
    embeddings,
    generate,
    health,
    info,
    invocations,
    messages,
    metrics,
    models,
    native,
    responses,
    scores,
    sleep,
    slots,
    tokens,
    transcriptions,
    unserved,
    usage,
)
from pagoda.server.routes.page import files, mcp, tools
from pagoda.server.routes.peers import lmstudio, ollama, ollama_models, ollama_pull

_log = get_logger(__name__)

_READABLE_HEADERS = (
    "X-Request-Id", "Retry-After", "Pagoda-Not-Enforced", "Pagoda-Unknown-Fields",
    *(f"x-ratelimit-{what}-{of}"
      for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)  # fmt: skip
"""What pages of other origins may read beside the body."""


def create_app(fleet: Fleet, config: ServerConfig, advice: Advice | None = None) -> FastAPI:
    """An app that answers from the start: 503 until its context has a fleet with models."""
    context = Context(fleet, config, advice=advice)
    app = FastAPI(
        title="Pagoda API",
        docs_url=None,
        redoc_url=None,
        middleware=_middleware(context),
        openapi_url="/openapi.json",
        # The document of a route says what it answers with (`openapi.describe`).
        default_response_class=Response,
    )
    app.state.context = context
    app.state.responses = Responses(ResponseStore(config.responses_store))
    install_handlers(app)
    modules = (
        chat, completions, responses, messages, native, generate, embeddings, scores, invocations,
        ollama, ollama_models, ollama_pull, lmstudio, models, tokens,
        transcriptions, files, mcp, tools, health,
        metrics, info, adapters, sleep, slots, usage, docs, unserved,
    )  # fmt: skip
    for module in modules:
        app.include_router(module.router)
        if module is not unserved:
            _log_routes(module.router)
    docs.mount_assets(app)
    app.openapi = lambda: build_openapi(app)  # type: ignore[method-assign]  # FastAPI: override it so
    return app


def _log_routes(router: APIRouter) -> None:
    for route in router.routes:
        if isinstance(route, APIRoute):
            _log.debug("Route: %s, Methods: %s", route.path, ", ".join(sorted(route.methods or ())))


def _middleware(context: Context) -> list[Middleware]:
    """Outermost first. CORS is outside of the key check: browsers send no key with a preflight."""
    config = context.config
    stack = [Middleware(RootPathMiddleware, root_path=config.root_path)] if config.root_path else []
    stack += [
        Middleware(
            RequestLogMiddleware,
            metrics=context.metrics,
            access_log=not config.disable_uvicorn_access_log,
        ),
        Middleware(WebGuardMiddleware, hosts=allowed_hosts(config), origins=config.allowed_origins),
    ]
    if config.allowed_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_origin_regex=local_origins(config.allowed_origins),
                allow_methods=config.allowed_methods,
                allow_headers=config.allowed_headers,
                allow_credentials=config.allow_credentials,
                # Browsers ask for it where a public site calls a server of this machine.
                allow_private_network=True,
                expose_headers=_READABLE_HEADERS,
            )
        )
    if asks_for_key(config):
        keys = configured_keys(config)
        stack.append(Middleware(AuthMiddleware, keys=keys, keyring=context.keyring))
    stack.append(Middleware(BodyLimitMiddleware, max_bytes=config.max_body_bytes))
    stack.append(Middleware(LeaseMiddleware))
    stack.append(Middleware(HeadMiddleware))
    return stack
