"""Connections to the server's own HTTP protocol, for tests in virtual time."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from pagoda.config.server import ServerConfig
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.server.http1 import StreamingProtocol
from tests.server.fakes import FakeClient, served_model


class Server:
    """Around a fake engine; made inside of a test's loop."""

    def __init__(self, client: FakeClient):
        self.client = client
        app = create_app(
            Fleet.of([served_model(client)]), ServerConfig(disable_uvicorn_access_log=True)
        )
        self._config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        self._config.load()
        self._state = ServerState()

    def connect(self) -> "Connection":
        return Connection(StreamingProtocol(self._config, self._state, {}))

    async def get(self, path: str) -> bytes:
        """The reply, over a connection of its own."""
        connection = self.connect()
        connection.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        return await connection.reply()


class Connection(asyncio.Transport):
    """The server's side of a connection, played: `send` is what the peer does."""

    def __init__(self, protocol: StreamingProtocol):
        super().__init__()
        self.received = b""
        self.closed_at: float | None = None
        self.aborted = False
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        protocol.connection_made(self)

    def send(self, data: bytes) -> None:
        assert self.closed_at is None
        self._protocol.data_received(data)

    def stop_reading(self) -> None:
        """What the server writes fills all buffers."""
        self._protocol.pause_writing()

    def go_on_reading(self) -> None:
        self._protocol.resume_writing()

    async def reply(self) -> bytes:
        """What comes until a reply of JSON is complete."""
        while not (b"\r\n\r\n" in self.received and self.received.endswith(b"}")):
            await self._news.wait()
            self._news.clear()
        received, self.received = self.received, b""
        return received

    async def closing(self) -> float:
        """When the server closes it."""
        while self.closed_at is None:
            await self._news.wait()
            self._news.clear()
        return self.closed_at

    def write(self, data: bytes) -> None:  # type: ignore[override]  # bytes alone come here
        self.received += data
        self._news.set()

    def close(self) -> None:
        if self.closed_at is None:
            self.closed_at = self._loop.time()
            self._news.set()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closed_at is not None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
