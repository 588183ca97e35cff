"""API keys, by `Authorization: Bearer` or `x-api-key`."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda.server.errors import ApiError

# Probes and scrapers seldom carry keys; these paths tell nothing of any request.
OPEN_PATHS = frozenset(
    {"/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/metrics"}
)


def route_path(scope: Scope) -> str:
    """The path as routes see it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class AuthMiddleware:
    def __init__(self, app: ASGIApp, keys: Iterable[str]):
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] in ("http", "websocket") and route_path(scope) not in OPEN_PATHS
        if not asks or self._allows(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "The API key is missing or wrong; send it as `Authorization: Bearer KEY` or as "
            "`x-api-key: KEY`.",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error.response(scope)(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        sent = [_digest(key) for key in (bearer, headers.get("x-api-key", ""))]
        # Every key is compared, and over digests: time tells neither which nor how much matched.
        matches = [hmac.compare_digest(digest, known) for digest in sent for known in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
