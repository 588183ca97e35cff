"""The HTTP server of the page."""

import socket

import uvicorn

from pagoda_agent.service.app import Service

# For answers that are under way.
_LAST_SECONDS = 1


class Server(uvicorn.Server):
    """Ends when it is told to, also while pages look on."""

    def __init__(self, service: Service):
        super().__init__(
            uvicorn.Config(
                service.app(),
                log_level="warning",
                ws="none",
                timeout_graceful_shutdown=_LAST_SECONDS,
            )
        )
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end_streams()
        await super().shutdown(sockets)
