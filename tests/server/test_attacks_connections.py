"""Peers that are slow, silent or many: they are given up in time, and all others are served."""

import asyncio
import resource
from collections.abc import Iterator

import pytest

from pagoda.server import http1
from pagoda.server.http.middleware import BODY_TIMEOUT
from pagoda.server.http1 import HEAD_TIMEOUT, IDLE_TIMEOUT, WRITE_TIMEOUT
from pagoda.server.launch import allow_many_connections
from tests.server.fakes import FakeClient
from tests.server.virtual import Connection, Server
from tests.virtual_time import in_virtual_time

HEAD = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: "
BODY = b'{"prompt": "a", "max_tokens": 1}'
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


async def drip(connection: Connection, byte: bytes) -> float:
    """A byte a second until the server has enough; when that was."""
    while connection.closed_at is None:
        connection.send(byte)
        await asyncio.sleep(1)
    return connection.closed_at


def test_a_silent_connection_is_closed(start, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a real server."""
    monkeypatch.setattr(http1, "HEAD_TIMEOUT", 0.05)
    with start(FakeClient()).connect() as connection:
        assert connection.recv(1) == b""


@in_virtual_time
async def test_a_head_that_comes_byte_by_byte() -> None:
    server = Server(FakeClient())
    slow = server.connect()
    slow.send(HEAD)
    assert await drip(slow, b"a") == HEAD_TIMEOUT
    assert slow.received == b""
    assert b" 200 OK" in await server.get("/version")


@in_virtual_time
async def test_a_head_that_is_slow_but_in_time() -> None:
    connection = Server(FakeClient()).connect()
    connection.send(HEAD)
    for _ in range(HEAD_TIMEOUT - 1):
        await asyncio.sleep(1)
        connection.send(b"a")
    connection.send(b"\r\n\r\n")
    assert b" 200 OK" in await connection.reply()


@in_virtual_time
async def test_a_kept_connection_is_closed_when_idle() -> None:
    connection = Server(FakeClient()).connect()
    for _ in range(3):
        connection.send(POST % len(BODY) + BODY)
        assert b" 200 OK" in await connection.reply()
        answered = asyncio.get_running_loop().time()
        await asyncio.sleep(IDLE_TIMEOUT - 1)
    assert await connection.closing() == answered + IDLE_TIMEOUT


@in_virtual_time
async def test_a_second_head_that_comes_byte_by_byte() -> None:
    connection = Server(FakeClient()).connect()
    connection.send(POST % len(BODY) + BODY)
    await connection.reply()
    answered = asyncio.get_running_loop().time()
    connection.send(HEAD)
    assert await drip(connection, b"a") == answered + HEAD_TIMEOUT


@in_virtual_time
async def test_a_body_that_comes_byte_by_byte() -> None:
    server = Server(FakeClient())
    connection = server.connect()
    connection.send(POST % 100_000)
    told = asyncio.create_task(connection.reply())
    dripping = asyncio.create_task(drip(connection, b" "))
    assert b" 408 " in await told
    assert BODY_TIMEOUT <= asyncio.get_running_loop().time() < BODY_TIMEOUT + 1
    # Who goes on for all that is not listened to for ever.
    assert await dripping <= BODY_TIMEOUT + 1 + HEAD_TIMEOUT
    assert server.client.requests == []


@in_virtual_time
async def test_a_large_body_has_more_time() -> None:
    server = Server(FakeClient())
    connection = server.connect()
    seconds = int(2 * BODY_TIMEOUT)
    connection.send(POST % (seconds * 4096 + len(BODY)))
    for _ in range(seconds):
        connection.send(b" " * 4096)
        await asyncio.sleep(1)
    connection.send(BODY)
    assert b" 200 OK" in await connection.reply()


@in_virtual_time
async def test_a_body_that_never_comes() -> None:
    connection = Server(FakeClient()).connect()
    connection.send(POST % 100)
    assert b" 408 " in await connection.reply()
    assert asyncio.get_running_loop().time() == BODY_TIMEOUT


@in_virtual_time
async def test_requests_that_take_long_are_not_idle() -> None:
    """A token takes longer than any time-out."""
    server = Server(FakeClient(delay=2 * WRITE_TIMEOUT))
    for more, end in ((b"", b"}"), (b', "stream": true', b"data: [DONE]\n\n\r\n0\r\n\r\n")):
        body = b'{"prompt": "a", "max_tokens": 5' + more + b"}"
        connection = server.connect()
        connection.send(POST % len(body) + body)
        await asyncio.sleep(20 * WRITE_TIMEOUT)
        assert b" 200 OK" in connection.received and connection.received.endswith(end)


@in_virtual_time
async def test_a_reader_that_stopped_is_given_up() -> None:
    server = Server(FakeClient(delay=1))
    body = b'{"prompt": "a", "max_tokens": 800, "n": 3, "stream": true, "ignore_eos": true}'
    stopped, slow = server.connect(), server.connect()
    for connection in (stopped, slow):
        connection.send(POST % len(body) + body)
        await asyncio.sleep(5)
        connection.stop_reading()
    read = len(slow.received)
    await asyncio.sleep(WRITE_TIMEOUT - 10)
    assert not stopped.aborted
    slow.go_on_reading()
    # Nobody reads the other, and everybody else is served.
    connection = server.connect()
    connection.send(POST % len(BODY) + BODY)
    assert b" 200 OK" in await connection.reply()
    await asyncio.sleep(20)
    assert stopped.aborted and not slow.aborted
    assert len(slow.received) > read
    slow.abort()
    await asyncio.sleep(WRITE_TIMEOUT)
    assert not server.client.running


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
