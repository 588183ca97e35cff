"""What the pages that a user's browser shows may do here: nothing, unless a flag lets them.

A browser sends a page's requests to whatever server it reaches, one of this machine alone too.
Two things give such a request away. Where the page's own name was made to point here (DNS
rebinding), Host is that name. Elsewhere Sec-Fetch-Site or Origin tells whose page it is; other
clients send neither.
"""

import ipaddress
import re
import socket
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda.base.log import get_logger
from pagoda.config.server import ServerConfig
from pagoda.server.errors import ApiError
from pagoda.server.http.listen import is_loopback_host

_log = get_logger(__name__)

_ANY = "*"
_LOCALHOST = "localhost"
_LOCAL_ORIGIN = r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?"
"""Pages of servers on this machine, whatever their ports: what the origin `localhost` stands
for."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::\d+)?", re.ASCII)
"""An IPv6 address or a name, then a port."""
_READING = frozenset({"GET", "HEAD"})
"""These change nothing, and the browser keeps their replies from a page of another origin."""
_POLICY_VIOLATION = 1008
# Who sends a new origin with each request must not fill the log.
_MAX_LOGGED = 32
_MAX_SHOWN = 200


class WebGuardMiddleware:
    """403, with the flag that would let the request in."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, origins: Collection[str]):
        """`hosts` None takes any name."""
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = None
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            method = scope.get("method", "")  # a WebSocket has none, and it may change things
            error = self._check_host(headers) or self._check_origin(method, headers)
        if error is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await error.response(scope)(scope, receive, send)

    def _check_host(self, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._hosts is None or not host:
            return None  # HTTP/1.0 knows no Host, and every browser sends one
        found = _HOST.fullmatch(host)
        name = (found[1] or found[2]).lower().rstrip(".") if found else host
        if found and (name in self._hosts or _is_local(name)):
            return None
        name = name[:_MAX_SHOWN]
        return ApiError(
            403, f"This server is not called {name!r}; `--allowed-hosts {name}` would let it be."
        )

    def _check_origin(self, method: str, headers: Headers) -> ApiError | None:
        origin = headers.get("origin", "")
        if _ANY in self._origins or (origin and origin in self._origins):
            return None
        if _LOCALHOST in self._origins and re.fullmatch(_LOCAL_ORIGIN, origin, re.ASCII):
            return None
        if not _is_foreign(origin, headers):
            return None
        shown = origin[:_MAX_SHOWN] or "another site"
        advice = f"`--allowed-origins {shown}` would let them" if origin else "and named no origin"
        if shown not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(shown)
            _log.warning("Blocked: web pages of %s may not call this server; %s.", shown, advice)
        if method in _READING:
            return None
        return ApiError(403, f"Web pages of {shown} may not call this server; {advice}.")


def _is_foreign(origin: str, headers: Headers) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        # Pages can't set it, and it is right behind proxies that change Host. Browsers send it to
        # https:// and to this machine.
        return site not in ("same-origin", "none")
    return bool(origin) and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def local_origins(origins: Collection[str]) -> str | None:
    """The pattern of origins that are allowed besides those which are named."""
    return _LOCAL_ORIGIN if _LOCALHOST in origins else None


def allowed_hosts(config: ServerConfig) -> frozenset[str] | None:
    """Names that Host may have beside addresses and localhost; None: any."""
    if config.uds is not None or _ANY in config.allowed_hosts:
        return None
    if not config.allowed_hosts and not is_loopback_host(config.host):
        return None
    names = (config.host, socket.gethostname(), *config.allowed_hosts)
    return frozenset(name.lower() for name in names)


def _is_local(name: str) -> bool:
    """A name that nobody can make point here: browsers resolve localhost themselves, and an
    address is no name."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
