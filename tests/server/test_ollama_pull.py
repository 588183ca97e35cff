"""/api/pull, with a hub that the test plays."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda.base.errors import SourceError
from pagoda.config.server import ServerConfig
from pagoda.server.library import fetches
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import FakeClient
from tests.server.test_ollama import error_of, lines_of, whole

Start = Callable[..., RunningServer]


class Hub:
    """Gives a model piece by piece, each once it may; keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.given_up = 0
        self.open = threading.Event()
        self.closed = threading.Event()
        """The test is over."""
        self.error: str | None = None

    def resolve(self, ref: str, *, progress: Any, **_: Any) -> Path:
        self.asked.append(ref)
        try:
            progress("a.gguf", 10, 100)
            while not self.open.wait(0.02) and not self.closed.is_set():
                progress("a.gguf", 20, 100)
            if self.error is not None:
                raise SourceError(self.error)
            progress("a.gguf", 100, 100)
            progress("文件.gguf", 7, 7)
        except Exception:
            self.given_up += 1
            raise
        return Path("/nowhere/a.gguf")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    played = Hub()
    monkeypatch.setattr(fetches, "resolve_model", played.resolve)
    yield played
    played.closed.set()


def pull(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/api/pull", **body)


def names(server: RunningServer) -> list[str]:
    return [model["name"] for model in whole(server.http.get("/api/tags"))["models"]]


def test_progress_in_lines(start: Start, hub: Hub) -> None:
    server = start(FakeClient())
    with server.http.stream("POST", "/api/pull", json={"model": "org/new"}) as reply:
        assert reply.headers["content-type"] == "application/x-ndjson"
        lines: list[dict[str, Any]] = []
        for line in reply.iter_lines():
            lines.append(json.loads(line))
            if lines[-1].get("completed") in (10, 20):
                hub.open.set()
    assert lines[0] == {"status": "pulling manifest"} and lines[-1] == {"status": "success"}
    parts = [(line["digest"], line["completed"], line["total"]) for line in lines[1:-1]]
    assert parts[0][0] == "a.gguf" and parts[0][1] < 100
    assert parts == sorted(parts, key=lambda part: (part[0], part[1]))
    assert hub.asked == ["org/new"]
    assert names(server) == ["fake", "fake-alias", "org/new"], "it can be asked for now"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("org/new:latest", "org/new"),
        ("org/new:Q4_K_M", "org/new:Q4_K_M"),
        ("hf:org/new", "hf:org/new"),
        ("hf.co/org/new:Q8_0", "hf:org/new:Q8_0"),
        ("huggingface.co/org/new", "hf:org/new"),
        ("modelscope:org/new", "modelscope:org/new"),
        ("smollm2:latest", "smollm2"),
    ],
)
def test_names(start: Start, hub: Hub, name: str, asked: str) -> None:
    hub.open.set()
    server = start(FakeClient())
    assert whole(pull(server, model=name, stream=False)) == {"status": "success"}
    assert hub.asked == [asked]
    known = name.removesuffix(":latest")
    assert names(server)[-1] == known
    (entry,) = [entry for entry in server.context.fleet.entries if known in entry.names]
    assert entry.config.model.model == asked
    # Again: it is one of the server's models.
    assert whole(pull(server, name=name, stream=False)) == {"status": "success"}
    assert names(server).count(known) == 1


@pytest.mark.parametrize(
    "name", ["/etc", "/no/such/file.gguf", "./x", "../x", "~/x", "~root", "src", "nosuch", "a b/c:"]
)
def test_what_is_on_the_server_is_nobody_s_business(start: Start, hub: Hub, name: str) -> None:
    """A folder that is there gets the words of one that is not."""
    error = error_of(pull(start(FakeClient()), model=name), 404)
    assert "org/name" in error and name in error and not hub.asked


def test_an_error_of_the_hub(start: Start, hub: Hub) -> None:
    hub.error = "The hub has no org/new; look at its name."
    hub.open.set()
    server = start(FakeClient())
    assert lines_of(pull(server, model="org/new"))[-1] == {"error": hub.error}
    assert error_of(pull(server, model="org/new", stream=False), 502) == hub.error
    assert names(server) == ["fake", "fake-alias"]
    hub.error = None
    assert lines_of(pull(server, model="org/new"))[-1] == {"status": "success"}, "tried again"


def test_who_asks_for_the_same_follows_one_fetch(start: Start, hub: Hub) -> None:
    server = start(FakeClient())
    found: list[list[dict[str, Any]]] = []
    threads = [
        threading.Thread(target=lambda: found.append(lines_of(pull(server, model="org/new"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: bool(hub.asked) and server.context.metrics.load == 4)
    hub.open.set()
    for thread in threads:
        thread.join()
    assert hub.asked == ["org/new"]
    assert [lines[-1] for lines in found] == [{"status": "success"}] * 4
    assert names(server).count("org/new") == 1


def test_a_fetch_that_nobody_follows_ends(start: Start, hub: Hub) -> None:
    server = start(FakeClient())
    for stream in (True, False):
        body = json.dumps({"model": "org/new", "stream": stream}).encode()
        with socket.create_connection(server.address) as connection:
            connection.sendall(
                b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            wait_until(lambda: len(hub.asked) == hub.given_up + 1)
        wait_until(lambda: len(hub.asked) == hub.given_up)
    assert server.context.metrics.load == 0
    assert whole(server.http.get("/api/version")), "and the server goes on"


def test_an_open_server_without_keys_fetches_for_nobody(start: Start, hub: Hub) -> None:
    hub.open.set()
    quiet = {"disable_uvicorn_access_log": True, "host": "0.0.0.0"}
    server = start(FakeClient(), ServerConfig(**quiet))
    assert "--api-key" in error_of(pull(server, model="org/new"), 403)
    assert whole(pull(server, model="fake", stream=False)), "its own models it would load anyway"
    server = start(FakeClient(), ServerConfig(**quiet, api_key=("k",)))
    assert "key" in error_of(pull(server, model="org/new"), 401)
    server.http.headers["Authorization"] = "Bearer k"
    assert whole(pull(server, model="org/new", stream=False))
