"""The short way of chunks writes the bytes of the long one, and steps aside where that waits."""

import asyncio
import socket

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pagoda.server.http1 import StreamingProtocol, chunk_writer
from tests.server.conftest import RunningServer

DATA = (b"abc", b"", b"wxyz" * 10)


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


class Application:
    """Streams DATA, by the writer where there is one."""

    def __init__(self, before_chunk=lambda: None):
        self.shortcuts = []
        self._before_chunk = before_chunk

    async def __call__(self, scope, receive, send):
        write = chunk_writer(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for data in DATA:
            self._before_chunk()
            self.shortcuts.append(write(data))
            if not self.shortcuts[-1]:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"end", "more_body": False})


def connect(kind, application):
    config = uvicorn.Config(application, log_config=None, lifespan="off", ws="none")
    config.load()
    protocol = kind(config, ServerState(), {})
    protocol.connection_made(Transport())
    return protocol


async def request(protocol, method=b"POST", version=b"1.1"):
    protocol.data_received(
        method + b" / HTTP/" + version + b"\r\nHost: here\r\nContent-Length: 0\r\n\r\n"
    )
    await asyncio.gather(*protocol.tasks)


@pytest.mark.parametrize(
    ("method", "version", "shortcuts"),
    [
        (b"POST", b"1.1", [True, False, True]),
        (b"POST", b"1.0", [False, False, False]),
        (b"HEAD", b"1.1", [False, False, False]),
    ],
)
async def test_the_bytes_are_those_of_uvicorn(method, version, shortcuts):
    application = Application()
    ours, theirs = connect(StreamingProtocol, application), connect(H11Protocol, Application())
    for _ in range(1 if version == b"1.0" else 2):  # again on the same connection
        application.shortcuts.clear()
        for protocol in (ours, theirs):
            await request(protocol, method, version)
        assert application.shortcuts == shortcuts
        assert ours.transport.written == theirs.transport.written
        assert ours.conn.states == theirs.conn.states
        assert ours.transport.closed == theirs.transport.closed


async def test_a_slow_reader_is_waited_for():
    application = Application(before_chunk=lambda: protocol.pause_writing())
    protocol = connect(StreamingProtocol, application)
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
    for _ in range(3):
        await asyncio.sleep(0)
        assert application.shortcuts == [False]
    while protocol.tasks:
        protocol.resume_writing()
        await asyncio.sleep(0)
    assert application.shortcuts == [False] * 3
    assert protocol.transport.written.endswith(
        b"\r\nwxyz%b\r\n3\r\nend\r\n0\r\n\r\n" % (b"wxyz" * 9)
    )


async def test_nothing_is_written_for_a_client_that_left():
    left = []

    def leave():
        if not left:
            left.append(protocol.transport.written)
            protocol.connection_lost(None)

    application = Application(before_chunk=leave)
    protocol = connect(StreamingProtocol, application)
    await request(protocol)
    assert application.shortcuts == [False] * 3
    assert [protocol.transport.written] == left


async def test_a_chunk_whose_client_leaves_in_the_same_turn_is_dropped():
    class Leaving(Application):
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            assert chunk_writer(scope)(b"abc")
            protocol.transport.close()  # a closed one of uvloop's raises where it is written to

    protocol = connect(StreamingProtocol, Leaving())
    await request(protocol)
    await asyncio.sleep(0)
    assert protocol.transport.written.endswith(b"\r\n\r\n")


async def test_chunks_do_not_wait_for_the_next_one():
    class Endless(Application):
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            assert chunk_writer(scope)(b"abc")
            await asyncio.Event().wait()

    protocol = connect(StreamingProtocol, Endless())
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
    for _ in range(3):
        await asyncio.sleep(0)
    assert protocol.transport.written.endswith(b"\r\n\r\n3\r\nabc\r\n")
    for task in protocol.tasks:
        task.cancel()
    await asyncio.gather(*protocol.tasks, return_exceptions=True)


async def test_others_get_their_turn_while_a_connection_floods():
    bodies = []

    async def application(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    count = 50_000
    head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    one = head + b"1\r\na\r\n" * count + b"0\r\n\r\n"
    protocol = connect(StreamingProtocol, application)
    protocol.data_received(one + one)
    turns = 0
    while len(bodies) < 2:
        turns += 1
        await asyncio.sleep(0)
    assert bodies == [b"a" * count] * 2
    assert turns > 10
    assert not protocol.flow.holds and not protocol.flow.read_paused


def test_names_of_headers_are_written_as_by_other_servers(shared: RunningServer) -> None:
    """Scripts that look for them with `grep` find them."""
    with socket.create_connection(shared.address, timeout=30) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        head = connection.makefile("rb").read().partition(b"\r\n\r\n")[0]
    assert b"\r\nContent-Type: application/json" in head and b"\r\nContent-Length: " in head
    assert head.lower().count(b"\r\nconnection:") == 1
