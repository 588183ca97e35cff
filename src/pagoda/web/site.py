"""A page at `/`, in front of an API: its document, its files, nothing else.

A page is a client like any other: it asks the API for everything, with what lets its user in, so
none of this needs that.
"""

import asyncio
import re
import secrets
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagoda.base.log import get_logger
from pagoda.web.paths import ASSETS_PATH, NICEGUI_PATH

_log = get_logger(__name__)

_ASSETS = Path(__file__).parent / "assets"
_RENDER_SECONDS = 120
_NONCE = "PAGODA-NONCE"
# Nothing on the page needs eval, styles in attributes, or another host.
_POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Browsers ask whether a file is still the same, so an upgrade is seen at once.
    "Cache-Control": "no-cache",
}
_MISSING = """<!DOCTYPE html><meta charset="utf-8"><title>Pagoda</title>
<style>body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto }}</style>
<h1>Pagoda</h1>{about}
<p>{reason}</p>"""
_ABOUT = {
    "chat": "<p>The API is at <code>/v1</code>, its documentation at <a href='docs'>/docs</a>.</p>",
    "agent": "<p>The agent's API is at <code>/api</code>.</p>",
}
_NOT_INSTALLED = (
    "The page needs an extra that is not installed: <code>pip install 'pagoda-llm[web]'</code>"
    " (in a clone: <code>make install</code>), then reload."
)
_FAILED = "The page could not be made; the server's log says why."


class Site:
    """An ASGI application: the page's own paths, and `app` for all others.

    Like the API's, the page's paths are served with and without `root_path` before them: a proxy
    may have taken that away. `page` is one of document.PAGES.
    """

    def __init__(self, app: ASGIApp, root_path: str = "", page: str = "chat"):
        self._app = app
        self._root = root_path
        self._page = page
        self._nicegui = _package_folder("nicegui")
        self._pages = Starlette(routes=list(self._routes()))
        self._rendering: asyncio.Task[str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if self._root and path.startswith(self._root + "/"):
            path = path.removeprefix(self._root)
        if path != "/" and not path.startswith((f"/{ASSETS_PATH}", f"/{NICEGUI_PATH}")):
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._pages({**scope, "path": path}, receive, send_guarded)

    def _routes(self) -> Iterator[BaseRoute]:
        yield Route("/", self._show)
        yield Mount(f"/{ASSETS_PATH}", StaticFiles(directory=_ASSETS))
        if self._nicegui:
            # The page asks the API, never NiceGUI: a socket would be one more thing to guard.
            socket = f"/{NICEGUI_PATH}{{version}}/static/socket.io.min.js"
            yield Route(socket, lambda request: FileResponse(_ASSETS / "nosocket.js"))
            files = StaticFiles(directory=self._nicegui / "static", check_dir=False)
            yield Mount(f"/{NICEGUI_PATH}{{version}}/static", files)

    async def _show(self, request: Request) -> Response:
        if self._nicegui is None:
            return HTMLResponse(self._without_page(_NOT_INSTALLED))
        try:
            document = await self._document()
        except (OSError, RuntimeError, TimeoutError) as error:
            _log.error("The %s page could not be made: %s", self._page, error)
            return HTMLResponse(self._without_page(_FAILED), 500)
        nonce = secrets.token_urlsafe(16)
        policy = {"Content-Security-Policy": _POLICY.format(nonce=nonce)}
        return HTMLResponse(document.replace(_NONCE, nonce), headers=policy)

    def _without_page(self, reason: str) -> str:
        return _MISSING.format(about=_ABOUT[self._page], reason=reason)

    async def _document(self) -> str:
        """The page's HTML, made once; a failure is tried again at the next visit."""
        if self._rendering is None:
            self._rendering = asyncio.create_task(_render(self._page))
        try:
            # A visitor who leaves must not end it for the others.
            return await asyncio.shield(self._rendering)
        except (OSError, RuntimeError, TimeoutError):
            self._rendering = None
            raise


def _package_folder(name: str) -> Path | None:
    """Where a package is installed, found without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


async def _render(page: str) -> str:
    """The document, from a process of its own. RuntimeError says how that failed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagoda.web.document", page,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        html, problem = await asyncio.wait_for(process.communicate(), _RENDER_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        raise RuntimeError(problem.decode(errors="replace").strip()[-2000:])
    return _under_policy(html.decode())


def _under_policy(html: str) -> str:
    """Let the document's own scripts and styles run, and NiceGUI's after those of the page."""
    html = re.sub("<(script|style)", rf'<\1 nonce="{_NONCE}"', html)
    html = html.replace("<script nonce", '<script fetchpriority="low" nonce')
    return html.replace(' style="display: none"', " hidden")
