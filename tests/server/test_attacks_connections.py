"""Peers that are slow, silent or many: they are given up in time, and all others are served."""

import resource
import socket
import time
from collections.abc import Iterator

import pytest

from pagoda.server import http1, middleware
from pagoda.server.launch import allow_many_connections
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import FakeClient

SOON = 0.2
BODY = b'{"prompt": "a", "max_tokens": 1}'
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


@pytest.fixture
def impatient(start, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    for module, name in (
        (http1, "HEAD_TIMEOUT"), (http1, "IDLE_TIMEOUT"), (http1, "WRITE_TIMEOUT"),
        (middleware, "BODY_TIMEOUT"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, SOON)
    return start(FakeClient(delay=0.001))


def drip(connection: socket.socket, data: bytes) -> bytes:
    """Send byte by byte, each well within any time-out; what the server says when it has enough."""
    try:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(SOON / 10)
        raise AssertionError("the server took all of it")
    except ConnectionError:
        pass
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def read_reply(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        data += connection.recv(65536)
    return data


def test_a_silent_connection_is_closed(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        assert connection.recv(1) == b""


def test_a_head_that_comes_byte_by_byte(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        drip(connection, b"GET /version HTTP/1.1\r\nX: " + b"a" * 10_000)
    assert impatient.http.get("/version").status_code == 200


def test_a_kept_connection_is_closed_when_idle(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(POST % len(BODY) + BODY)
        assert b" 200 OK" in read_reply(connection)
        assert connection.recv(1) == b""


def test_a_second_head_that_comes_byte_by_byte(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(POST % len(BODY) + BODY)
        read_reply(connection)
        drip(connection, b"GET /version HTTP/1.1\r\nX: " + b"a" * 10_000)


def test_a_body_that_comes_byte_by_byte(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(POST % 100_000)
        answer = drip(connection, b" " * 10_000)
    assert b" 408 " in answer or answer == b""
    assert impatient.client.requests == []


def test_a_body_that_never_comes(impatient: RunningServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(POST % 100)
        assert b" 408 " in connection.recv(65536)


def test_requests_that_take_long_are_not_idle(start, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_TIMEOUT", "IDLE_TIMEOUT"):
        monkeypatch.setattr(http1, name, SOON)
    server = start(FakeClient(delay=SOON / 2))
    assert server.chat(max_tokens=10).json()["usage"]["completion_tokens"] == 10
    reply = server.chat(max_tokens=10, stream=True)
    assert reply.text.endswith("data: [DONE]\n\n")


def test_a_reader_that_stopped_is_given_up(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "WRITE_TIMEOUT", SOON)
    text = b"0123456789" * 80
    client = FakeClient(script=lambda request: text, delay=0.0001)
    server = start(client)
    body = b'{"prompt": "a", "max_tokens": 800, "n": 100, "stream": true}'
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect(server.address)
        connection.sendall(POST % len(body) + body)
        wait_until(lambda: server.http.get("/load").json() == {"server_load": 1})
        # Nobody reads, and everybody else is served.
        assert server.post("/v1/completions", prompt="b", max_tokens=1).status_code == 200
        wait_until(lambda: server.http.get("/load").json() == {"server_load": 0}, 30)
    assert not client.running


@pytest.fixture
def descriptors() -> Iterator[int]:
    """As many as the machine allows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    allow_many_connections()
    yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_server_takes_all_descriptors_it_may_have(descriptors: int) -> None:
    assert descriptors == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)


def test_thousands_of_idle_connections(start, descriptors: int) -> None:
    server = start(FakeClient())
    # Both ends are in this process.
    count = min(4000, (descriptors - 200) // 2)
    connections = [server.connect() for _ in range(count)]
    try:
        assert server.chat(max_tokens=3).status_code == 200
        assert server.chat(max_tokens=3, stream=True).text.endswith("data: [DONE]\n\n")
    finally:
        for connection in connections:
            connection.close()
    assert server.http.get("/version").status_code == 200
