"""A real server on 127.0.0.1 around a fake engine."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from pagoda.config.server import ServerConfig
from pagoda.engine.directory import ModelDirectory
from pagoda.server.app import create_app
from pagoda.server.context import Context
from pagoda.server.http1 import StreamingProtocol
from tests.server.fakes import FakeClient, served_model


@dataclass
class RunningServer:
    url: str
    client: FakeClient
    context: Context
    http: httpx.Client

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="dummy", max_retries=0, **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return self.post("/v1/chat/completions", **{"messages": messages, **body})


@contextlib.contextmanager
def running(
    client: FakeClient,
    config: ServerConfig | None = None,
    wrap: Callable[[Any], Any] | None = None,
    **text: Any,
) -> Iterator[RunningServer]:
    directory = ModelDirectory([served_model(client, **text)])
    app = create_app(directory, config or ServerConfig(disable_uvicorn_access_log=True))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            wrap(app) if wrap else app,
            log_config=None,
            lifespan="off",
            http=StreamingProtocol,
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=20) as http:
            yield RunningServer(url, client, app.state.context, http)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    """For tests that leave the engine as it is."""
    with running(FakeClient()) as server:
        yield server


@pytest.fixture
def start() -> Iterator[Callable[..., RunningServer]]:
    """Start servers with an engine or a config of the test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(running(*args, **kwargs))


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)
