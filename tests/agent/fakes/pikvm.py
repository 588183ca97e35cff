"""A PiKVM, as far as a client of kvmd can tell, on a screen of `screens`.

Written from kvmd's handlers (kvmd/apps/kvmd/api), with nothing of the drivers in it.
"""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from tests.agent.fakes.screens import Screen, as_jpeg
from tests.agent.fakes.site import Certificate, serving
from tests.agent.fakes.usb import KERNEL_CODES_BY_NAME

# kvmd's names of buttons, and their bit in a USB mouse's report.
_BUTTONS = {"left": 1, "right": 2, "middle": 4, "up": 8, "down": 16}


@dataclass
class FakePiKvm:
    screen: Screen
    user: str = "admin"
    password: str = "secret"
    offline: bool = False
    busy: bool = False
    """The power buttons are in use."""
    relative: bool = False
    snapshot_bytes: bytes | None = None
    """Instead of a picture of the screen."""
    drop_after: int | None = None

    def __post_init__(self) -> None:
        self.port = 0
        self.events: list[str] = []
        """Every message, but pings."""
        self.pings = 0
        self.refusals = 0
        self.links = 0
        self.posts: list[str] = []
        self._sockets: set[web.WebSocketResponse] = set()

    @asynccontextmanager
    async def run(self, certificate: Certificate) -> AsyncIterator["FakePiKvm"]:
        routes = {
            "GET /api/hid": self.hid,
            "POST /api/hid/reset": self.post,
            "POST /api/atx/click": self.post,
            "GET /api/streamer/snapshot": self.snapshot,
            "GET /api/ws": self.ws,
        }
        guarded = {route: self._guarded(handler) for route, handler in routes.items()}
        async with serving(guarded, certificate) as self.port:
            yield self

    def url(self, options: str) -> str:
        return f"pikvm://{self.user}:{self.password}@127.0.0.1:{self.port}{options}"

    def _guarded(self, handler):
        async def answer(request: web.Request) -> web.StreamResponse:
            headers = request.headers
            kind, _, encoded = headers.get("Authorization", "").partition(" ")
            if "X-KVMD-User" in headers:
                given = [headers["X-KVMD-User"], headers["X-KVMD-Passwd"]]
            elif kind == "Basic":
                given = base64.b64decode(encoded).decode().split(":")
            else:
                return self._error(401, "UnauthorizedError")
            if given != [self.user, self.password]:
                self.refusals += 1
                return self._error(403, "ForbiddenError")
            return await handler(request)

        return answer

    def _error(self, status: int, name: str) -> web.Response:
        result = {"error": name, "error_msg": "no"}
        return web.json_response({"ok": False, "result": result}, status=status)

    async def hid(self, request: web.Request) -> web.Response:
        mouse = {"online": True, "absolute": not self.relative}
        return web.json_response({"ok": True, "result": {"online": True, "mouse": mouse}})

    async def post(self, request: web.Request) -> web.Response:
        if self.busy:
            return self._error(409, "AtxIsBusyError")
        self.posts.append(str(request.rel_url))
        return web.json_response({"ok": True, "result": {}})

    async def snapshot(self, request: web.Request) -> web.Response:
        if self.offline:
            return self._error(503, "UnavailableError")
        body = self.snapshot_bytes
        if body is None:
            body = as_jpeg(self.screen.picture())
        return web.Response(body=body, content_type="image/jpeg")

    async def ws(self, request: web.Request) -> web.WebSocketResponse:
        assert request.query["stream"] == "0"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        self.links += 1
        await socket.send_str(json.dumps({"event_type": "loop", "event": {}}))
        taken = 0
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            event = json.loads(message.data)
            if event["event_type"] == "ping":
                self.pings += 1
                continue
            self.events.append(message.data)
            self._happen(event["event_type"], event["event"])
            taken += 1
            if self.drop_after is not None and taken >= self.drop_after:
                self.drop_after = None
                request.transport.abort()
        self._sockets.discard(socket)
        return socket

    def _happen(self, kind: str, event: dict) -> None:
        match kind:
            case "key":
                self.screen.key(KERNEL_CODES_BY_NAME[event["key"]], event["state"])
            case "mouse_button":
                self.screen.button(_BUTTONS[event["button"]], event["state"])
            case "mouse_move":
                x, y = event["to"]["x"], event["to"]["y"]
                assert -32768 <= x <= 32767 and -32768 <= y <= 32767
                self.screen.move((x + 32768) / 65535, (y + 32768) / 65535)
            case "mouse_wheel":
                # The report's AC Pan, where positive is right, and wheel, where it is up.
                self.screen.wheel(event["delta"]["x"], event["delta"]["y"])
