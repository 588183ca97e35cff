"""What every HTTP request passes: a limit on its body, an id, a line in the log, a root path."""

import asyncio
import logging
import time
import uuid
from contextlib import ExitStack
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.base.log import get_logger
from pagoda.server.anthropic.errors import REQUEST_ID, is_anthropic
from pagoda.server.bodies.body import UNKNOWN_FIELDS
from pagoda.server.bodies.header import header_list
from pagoda.server.context import LEASES
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.http.auth import OPEN_PATHS, route_path
from pagoda.server.metrics import Metrics

_access = get_logger("server.access")

# A client that stops in the middle of its body is given up after so many seconds, as is one that
# is behind by as much of what it would have sent at the least rate, in bytes per second.
BODY_TIMEOUT = 60.0
_LEAST_RATE = 4096
_MAX_ID = 128
# HTTP lets clients make up methods.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})


class RootPathMiddleware:
    """Puts every path under --root-path, whether or not the proxy in front took that away."""

    def __init__(self, app: ASGIApp, root_path: str):
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["root_path"] = self._root
        if not scope["path"].startswith(self._root + "/"):
            scope["path"] = self._root + scope["path"]
        await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """413 by Content-Length before a byte is read, and again by what really arrives."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout: float | None = None):
        self._app = app
        self._max_bytes = max_bytes
        self._timeout = BODY_TIMEOUT if timeout is None else timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._too_large().response(scope)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _limited(self, receive: Receive) -> Receive:
        received = 0
        complete = False
        deadline: float | None = None

        async def limited() -> Message:
            nonlocal received, complete, deadline
            if complete:
                return await receive()
            now = asyncio.get_running_loop().time()
            if deadline is None:
                deadline = now + self._timeout
            left = deadline + received / _LEAST_RATE - now
            try:
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                raise ApiError(408, "The request's body did not arrive in time.") from None
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._too_large()
            complete = not message.get("more_body", False)
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The request's body is larger than {self._max_bytes} bytes.")


class RequestLogMiddleware:
    """Outermost: gives the reply its X-Request-Id and the names of fields that nobody knew, counts
    it, and logs it when it is complete."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool):
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        request_id = Headers(scope=scope).get("x-request-id", "")[:_MAX_ID]
        if not request_id.isprintable() or not request_id:
            request_id = uuid.uuid4().hex
        scope[REQUEST_ID] = request_id
        names = ("X-Request-Id", "request-id") if is_anthropic(scope) else ("X-Request-Id",)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name in names:
                    MutableHeaders(scope=message)[name] = request_id
                if unknown := scope.get(UNKNOWN_FIELDS):
                    MutableHeaders(scope=message)["Pagoda-Unknown-Fields"] = header_list(unknown)
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception as error:  # noqa: BLE001  # the edge: it becomes a reply
            reply = to_api_error(error).response(scope)
            if status == 0:
                await reply(scope, receive, tagged)
        finally:
            self._record(scope, status or 500, time.monotonic() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        # Label values must be few, so paths nobody serves share one.
        handler, method = getattr(route, "path", "none"), scope["method"]
        label = method if method in _METHODS else "other"
        self._metrics.http_requests.labels(handler, label, f"{status // 100}xx").inc()
        self._metrics.http_seconds.labels(handler, label).observe(seconds)
        if self._access_log:
            client = scope.get("client") or ("", 0)
            # Probes ask every few seconds.
            level = logging.DEBUG if route_path(scope) in OPEN_PATHS else logging.INFO
            _access.log(
                level,
                '%s:%d - "%s %s HTTP/%s" %d',
                client[0], client[1], method, quote(scope["path"]), scope["http_version"], status,
            )  # fmt: skip


class LeaseMiddleware:
    """Lets go of the models that a request kept loaded, once it is answered."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as leases:
            scope[LEASES] = leases
            await self._app(scope, receive, send)


class HeadMiddleware:
    """Answers HEAD as GET, as health checks and proxies expect; uvicorn leaves out the body."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self._app(scope, receive, send)
            return

        async def as_head(message: Message) -> None:
            scope["method"] = "HEAD"  # who sends looks at it
            await send(message)

        scope["method"] = "GET"  # who routes does
        try:
            await self._app(scope, receive, as_head)
        finally:
            scope["method"] = "HEAD"
