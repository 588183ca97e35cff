"""A NanoKVM or NanoKVM-Pro, as far as a client can tell, on a screen of `screens`.

Written from what the firmware sends and takes (server/service and web/src/lib of sipeed/NanoKVM
and sipeed/NanoKVM-Pro), with nothing of the drivers in it.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from aiohttp import WSMsgType, web

from tests.agent.fakes.mice import Computer
from tests.agent.fakes.screens import Screen
from tests.agent.fakes.site import Certificate, serving
from tests.agent.fakes.stream import Stream

COOKIE = "nano-kvm-token"


@dataclass
class Firmware:
    """What one version of the firmware does."""

    application: str = "2.5.1"
    hardware: str | None = "Beta"
    """None: the version has no /api/vm/hardware."""
    password: Literal["obfuscated", "plain", "none"] = "obfuscated"
    token: Literal["cookie", "data"] = "cookie"
    speaks: Literal["binary", "json"] = "binary"
    releases: bool = True
    """Keys, when a client goes."""
    detects: bool = True
    """Has /api/stream/mjpeg/detect/stop."""


NANOKVM = Firmware()
OLD_NANOKVM = Firmware(
    "2.2.9", hardware=None, password="obfuscated", token="data", speaks="json", releases=False
)
PRO = Firmware(
    "1.2.13", hardware="Pro", password="plain", token="data", releases=False, detects=False
)
OLD_PRO = Firmware(
    "1.2.5", hardware="Pro", password="plain", token="data", speaks="json", releases=False,
    detects=False,
)  # fmt: skip


async def openssl_decrypts(text: str) -> str | None:
    """What a NanoKVM's server reads out of the password field; None where it cannot."""
    process = await asyncio.create_subprocess_exec(
        "openssl", "enc", "-d", "-aes-256-cbc", "-md", "md5", "-base64", "-A",
        "-pass", "pass:nanokvm-sipeed-2024",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    output, _ = await process.communicate(unquote(text).encode())
    return output.decode() if process.returncode == 0 else None


@dataclass
class FakeNanoKvm:
    screen: Screen
    firmware: Firmware = field(default_factory=Firmware)
    user: str = "admin"
    password: str = "secret"
    drop_after: int | None = None
    """Cut the next WebSocket after so many of its messages."""
    close_code: int | None = None
    """Close with this code, rather than cutting, when dropping."""
    refuse: bool = False
    """Take no WebSocket."""
    login_code: int | None = None
    """Answer every login with this code."""
    login_answer: object = None
    """What a login gives instead of a session."""
    leads_to: str = ""
    """Redirect everything there."""

    def __post_init__(self) -> None:
        self.port = 0
        self.logins: list[dict] = []
        self.hid: list[bytes | str] = []
        """Every message, but heartbeats."""
        self.times: list[float] = []
        self.heartbeats = 0
        self.links = 0
        self.posts: list[tuple[str, dict]] = []
        self.computer = Computer(self.screen)
        self.stream = Stream(self.screen)
        self._tokens: set[str] = set()
        self._sockets: set[web.WebSocketResponse] = set()
        self._queues: dict[int, asyncio.Queue] = {}

    @asynccontextmanager
    async def run(self, certificate: Certificate | None = None) -> AsyncIterator["FakeNanoKvm"]:
        routes = {
            "POST /api/auth/login": self.login,
            "GET /api/vm/info": self.info,
            "GET /api/vm/hardware": self.hardware,
            "POST /api/vm/gpio": self.post,
            "POST /api/hid/reset": self.post,
            "GET /api/stream/mjpeg": self.mjpeg,
            "POST /api/stream/mjpeg/detect/stop": self.stop_detection,
            "GET /api/ws": self.ws,
        }
        # Keyboard and mouse are written by two goroutines; this keyboard's is the slower one.
        self._queues = {1: asyncio.Queue(), 2: asyncio.Queue()}
        workers = [
            asyncio.create_task(self._work(self._queues[1], 0.005)),
            asyncio.create_task(self._work(self._queues[2], 0)),
        ]
        try:
            async with serving(
                {route: self._guarded(handler) for route, handler in routes.items()}, certificate
            ) as self.port:
                yield self
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def url(self, options: str = "", scheme: str = "nanokvm") -> str:
        return f"{scheme}://{self.user}:{self.password}@127.0.0.1:{self.port}{options}"

    def revoke(self) -> None:
        """As a logout from another browser does."""
        self._tokens.clear()

    async def say(self, text: str) -> None:
        for socket in self._sockets:
            await socket.send_str(text)

    async def cut(self) -> None:
        """The cable is out for a moment: every connection ends in the middle."""
        for socket in list(self._sockets):
            await self._drop(socket)
        self.stream.cut()

    def _guarded(self, handler):
        async def answer(request: web.Request) -> web.StreamResponse:
            if self.leads_to:
                raise web.HTTPTemporaryRedirect(self.leads_to + request.path)
            token = request.cookies.get(COOKIE)
            open_to_all = self.firmware.password == "none" or request.path == "/api/auth/login"
            if not open_to_all and token not in self._tokens:
                return web.Response(status=401, text="unauthorized")
            return await handler(request)

        return answer

    def _ok(self, data: object = None) -> web.Response:
        return web.json_response({"code": 0, "msg": "success", "data": data})

    async def login(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.logins.append(body)
        if self.login_code is not None:
            return web.json_response({"code": self.login_code, "msg": "too many attempts"})
        if self.login_answer is not None:
            return self._ok(self.login_answer)
        password = body["password"]
        if self.firmware.password == "obfuscated":
            password = await openssl_decrypts(password)
        if (body["username"], password) != (self.user, self.password):
            return web.json_response({"code": -2, "msg": "invalid username or password"})
        token = secrets.token_urlsafe(16)
        self._tokens.add(token)
        if self.firmware.token == "data":
            return self._ok({"token": token})
        response = self._ok()
        response.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return response

    async def info(self, request: web.Request) -> web.Response:
        return self._ok({"ips": [], "mdns": "", "application": self.firmware.application})

    async def hardware(self, request: web.Request) -> web.Response:
        if self.firmware.hardware is None:
            raise web.HTTPNotFound
        return self._ok({"version": self.firmware.hardware})

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        self.posts.append((request.path, body))
        return self._ok()

    async def mjpeg(self, request: web.Request) -> web.StreamResponse:
        return await self.stream.serve(request)

    async def stop_detection(self, request: web.Request) -> web.Response:
        if not self.firmware.detects:
            raise web.HTTPNotFound
        body = await request.json()
        self.posts.append((request.path, body))
        self.stream.detects = False
        await asyncio.sleep(body.get("duration", 10))
        self.stream.detects = True
        return self._ok()

    async def ws(self, request: web.Request) -> web.WebSocketResponse:
        if self.refuse:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        self.links += 1
        taken = 0
        try:
            async for message in socket:
                if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                    break
                self._take(message.data)
                taken += message.data != b"\x00"
                if self.drop_after is not None and taken >= self.drop_after:
                    self.drop_after = None
                    await self._drop(socket)
        finally:
            self._sockets.discard(socket)
            if self.firmware.releases and not self._sockets:
                self.computer.keyboard(bytes(8))
        return socket

    async def _drop(self, socket: web.WebSocketResponse) -> None:
        self._sockets.discard(socket)
        if self.close_code:
            await socket.close(code=self.close_code)
        elif socket._req is not None and socket._req.transport is not None:
            socket._req.transport.abort()

    def _take(self, message: bytes | str) -> None:
        if message == b"\x00":
            self.heartbeats += 1
            return
        self.hid.append(message)
        self.times.append(time.monotonic())
        if isinstance(message, str) == (self.firmware.speaks == "json"):
            event = list(message) if isinstance(message, bytes) else json.loads(message)
            self._queues[event[0]].put_nowait((time.monotonic(), event[1:]))

    async def _work(self, queue: asyncio.Queue, lag: float) -> None:
        while True:
            came, event = await queue.get()
            await asyncio.sleep(came + lag - time.monotonic())
            with suppress(Exception):  # as the firmware's goroutines, which log it
                if queue is self._queues[1]:
                    self._type(event)
                else:
                    self._point(event)

    def _type(self, event: list[int]) -> None:
        if self.firmware.speaks == "binary":
            self.computer.keyboard(bytes(event))
            return
        code, *modifiers = event
        held = 0
        for modifier in modifiers if code else ():
            held |= modifier
        self.computer.keyboard(bytes([held, 0, code, 0, 0, 0, 0, 0]))

    def _point(self, event: list[int]) -> None:
        if self.firmware.speaks == "json":
            kind, button, x, y = event
            if kind == 0:
                self.computer.relative_mouse(bytes(4))
            elif kind == 1 and button in (1, 2, 4):
                self.computer.relative_mouse(bytes([button, 0, 0, 0]))
            elif kind == 2:
                self.computer.absolute_mouse(bytes([0, x & 0xFF, x >> 8, y & 0xFF, y >> 8, 0]))
            elif kind == 4:
                self.computer.relative_mouse(bytes([0, 0, 0, 0xFF if y > 0 else 1]))
        elif len(event) == 4:
            self.computer.relative_mouse(bytes(event))
        elif len(event) == 6:
            self.computer.absolute_mouse(bytes(event))
