"""A page at `/`, in front of an API: files that are the same for everyone, nothing else.

A page is a client like any other: it asks the API for everything, with what lets its user in, so
none of this needs that.
"""

from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ASSETS = Path(__file__).parent / "assets"
_ASSETS_PATH = "/pages/chat"
_HEADERS = {
    # Nothing on a page needs eval, scripts or styles in its text, or another host.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Browsers ask whether a file is still the same, so an upgrade is seen at once.
    "Cache-Control": "no-cache",
}
_PREVIEW = _ASSETS_PATH + "/preview.html"
# HTML that a model wrote is shown there, and its scripts run: without the page's origin, a network,
# forms, or windows of their own. No other site may frame it.
_PREVIEW_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


class Site:
    """An ASGI application: the page's own paths, and `app` for all others.

    Like the API's, the page's paths are served with and without `root_path` before them: a proxy
    may have taken that away. The page names its files by relative paths, which fit both.
    """

    def __init__(self, app: ASGIApp, root_path: str = ""):
        self._app = app
        self._root = root_path
        # In a clone, files that two pages share are links.
        self._files = StaticFiles(directory=_ASSETS, follow_symlink=True)
        self._pages = Starlette(
            routes=[Route("/", self._show), Mount(_ASSETS_PATH, self._files)],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if self._root and path.startswith(self._root + "/"):
            path = path.removeprefix(self._root)
        if path != "/" and not path.startswith(_ASSETS_PATH + "/"):
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if path == _PREVIEW:
                    headers["Content-Security-Policy"] = _PREVIEW_POLICY
            await send(message)

        await self._pages({**scope, "path": path}, receive, send_guarded)

    async def _show(self, request: Request) -> Response:
        return await self._files.get_response("index.html", request.scope)
