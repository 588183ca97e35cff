"""WebSockets beside HTTP on the same port."""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pagoda.config.server import ServerConfig
from pagoda.server.http1 import WRITE_TIMEOUT


class SocketProtocol(WebSocketsSansIOProtocol):
    """Gives up a reader that has stopped: closing waits for what it never takes."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def websocket_options(config: ServerConfig) -> dict[str, Any]:
    """For uvicorn's Config."""
    return {
        "ws": SocketProtocol,
        "ws_max_size": config.max_body_bytes,
        # Deflating each token costs more than it saves where most clients are: on this machine.
        "ws_per_message_deflate": False,
    }
