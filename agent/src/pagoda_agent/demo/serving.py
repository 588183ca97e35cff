"""A small server of this process beside the page's."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

_LOOKS = 0.01


class _Quiet(uvicorn.Server):
    """Leaves the signals to the page's server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def model_server(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL of an application on a free port of 127.0.0.1, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", ws="none", lifespan="off")
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(_LOOKS)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()
