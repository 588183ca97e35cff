"""A real server on 127.0.0.1 around a fake engine."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import uvicorn

from pagoda.config.server import ServerConfig
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.server.context import Context
from pagoda.server.http.websocket import websocket_options
from pagoda.server.http1 import StreamingProtocol
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.fakes import FakeClient, served_model
from tests.server.served import Served
from tests.unit.text.templates import QWEN_TOOLS


@dataclass
class RunningServer:
    url: str
    client: FakeClient
    context: Context
    http: httpx.Client
    clients: contextlib.ExitStack
    """Closes those that were made: garbage may be found socket first, which is a warning."""

    def openai(self, **options: Any) -> openai.OpenAI:
        url = f"{self.url}/v1"
        made = openai.OpenAI(base_url=url, api_key="dummy", max_retries=0, **options)
        return self.clients.enter_context(made)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        made = anthropic.Anthropic(base_url=self.url, api_key="dummy", max_retries=0, **options)
        return self.clients.enter_context(made)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        """For what HTTP clients refuse to send; ten seconds are given to each answer."""
        return socket.create_connection(self.address, timeout=10)

    def exchange(self, request: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        with self.connect() as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))

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
    fleet = Fleet.of([served_model(client, **text)])
    config = config or ServerConfig(disable_uvicorn_access_log=True)
    app = create_app(fleet, config)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            wrap(app) if wrap else app,
            log_config=None,
            lifespan="off",
            http=StreamingProtocol,
            **websocket_options(config),
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=20) as http, contextlib.ExitStack() as clients:
            yield RunningServer(url, client, app.state.context, http, clients)
    finally:
        server.should_exit = True
        thread.join()
        asyncio.run(app.state.responses.close())


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


@pytest.fixture
def serve(start: Callable[..., RunningServer]) -> Callable[..., RunningServer]:
    """Start a server whose model writes `reply` under a template of Qwen's."""

    def serve(reply: str | list[int], delay: float = 0.0, **text: Any) -> RunningServer:
        written = bytes(reply, "utf-8") if isinstance(reply, str) else reply
        template = ChatTemplate({"default": QWEN_TOOLS}, {})
        text = {"parser": parser_for(QWEN_TOOLS), "chat_template": template, **text}
        return start(FakeClient(script=lambda request: written, delay=delay), **text)

    return serve


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.01)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start `serve_fake.py` with flags."""
    started: list[Served] = []

    def start(*how: str, **options: Any) -> Served:
        started.append(Served(*how, cache=tmp_path, **options))
        return started[-1]

    yield start
    for served in started:
        served.close()
