"""The page: files that are the same for everyone, and say nothing of the computer."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

_HEADERS = {
    # Nothing on the page needs eval, scripts or styles in its text, or another host.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Browsers ask whether a file is still the same, so an upgrade is seen at once.
    "Cache-Control": "no-cache",
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: MutableMapping[str, Any]) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """The page at `/` and its files below `/page`."""
    # In a clone some of them are links to those of Pagoda's chat page.
    files = _Files(directory=Path(__file__).parent / "page", follow_symlink=True)

    async def show(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", show), Mount("/page", files)]
