"""API keys, by `Authorization: Bearer` or `x-api-key`."""

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.server.errors import ApiError
from pagoda.server.keys.account import Account, asked_by, check_manages, no_key
from pagoda.server.keys.file import digest_of
from pagoda.server.keys.keyring import Keyring

# Probes and scrapers seldom carry keys; these paths tell nothing of any request.
OPEN_PATHS = frozenset(
    {"/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/metrics"}
)
# POST to these changes what others have. Tools and the library of models ask for themselves.
_MANAGING = frozenset(
    {
        "/models/unload", "/sleep", "/wake_up", "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter", "/lora-adapters", "/reset_prefix_cache",
        "/inference/v1/abort_requests",
    }
)  # fmt: skip


def route_path(scope: Scope) -> str:
    """The path as routes see it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class AuthMiddleware:
    def __init__(self, app: ASGIApp, keys: Iterable[str], keyring: Keyring | None = None):
        self._app = app
        self._keyring = keyring
        self._digests: list[tuple[bytes, Account | None]] = [(digest_of(key), None) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] in ("http", "websocket") and route_path(scope) not in OPEN_PATHS
        if not asks:
            await self._app(scope, receive, send)
            return
        found = self._matching(scope)
        if not found:
            await no_key().response(scope)(scope, receive, send)
        elif (account := found[0]) is None:
            await self._app(scope, receive, send)
        else:
            await self._answer(account, scope, receive, send)

    async def _answer(self, account: Account, scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(account.headers())
            await send(message)

        with asked_by(account):
            try:
                if scope.get("method") == "POST" and route_path(scope) in _MANAGING:
                    check_manages()
            except ApiError as error:
                await error.response(scope)(scope, receive, told)
                return
            await self._app(scope, receive, told)

    def _matching(self, scope: Scope) -> list[Account | None]:
        """Whose keys were sent; None, which comes first, is one of --api-key."""
        known = self._digests
        if self._keyring is not None:
            self._keyring.refresh()
            known = [*known, *self._keyring.digests]
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        sent = [digest_of(key) for key in (bearer, headers.get("x-api-key", ""))]
        # Every key is compared, and over digests: time tells neither which nor how much matched.
        matches = [
            (hmac.compare_digest(digest, key), account) for key, account in known for digest in sent
        ]
        return [account for match, account in matches if match]
