"""A folder of the operator's own files at `/`, in front of an API."""

import asyncio
import stat

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

_READING = ("GET", "HEAD")


class Files:
    """An ASGI application: a folder's files by their paths, a folder's `index.html` for itself, and
    `app` for everything else. Like a page's files, none of them needs a key."""

    def __init__(self, app: ASGIApp, folder: str, root_path: str = ""):
        self._app = app
        self._root = root_path
        self._files = StaticFiles(directory=folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = await self._file(scope) if scope["type"] == "http" else None
        await (self._app if file is None else file)(scope, receive, send)

    async def _file(self, scope: Scope) -> Response | None:
        """The file that a request asks for; None where there is no such."""
        if scope["method"] not in _READING:
            return None
        path: str = scope["path"]
        if self._root and path.startswith(self._root + "/"):
            path = path.removeprefix(self._root)
        if path.endswith("/"):
            path += "index.html"
        try:
            found, facts = await asyncio.to_thread(self._files.lookup_path, path.lstrip("/"))
        except (OSError, ValueError):  # a name that is too long, or has a zero byte
            return None
        if facts is None or not stat.S_ISREG(facts.st_mode):
            return None
        return self._files.file_response(found, facts, scope)
