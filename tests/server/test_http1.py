"""Chunks framed by ourselves are the bytes that h11 writes, and h11 still knows where it is."""

import h11
import pytest

from pagoda.server.http1 import _Connection

HEADS = {
    "chunked": [("content-type", "text/event-stream")],
    "sized": [("content-length", "7")],
}


def requested(connection: h11.Connection, version: bytes = b"1.1") -> h11.Connection:
    connection.receive_data(b"GET / HTTP/" + version + b"\r\nHost: here\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    return connection


def reply(connection: h11.Connection, headers: list[tuple[str, str]]) -> list[bytes | None]:
    written = [connection.send(h11.Response(status_code=200, headers=headers, reason="OK"))]
    written += [connection.send(h11.Data(data=data)) for data in (b"abc", b"", b"wxyz")]
    return [*written, connection.send(h11.EndOfMessage())]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("head", HEADS)
def test_the_bytes_are_those_of_h11(head, version):
    ours, theirs = (requested(kind(h11.SERVER), version) for kind in (_Connection, h11.Connection))
    assert reply(ours, HEADS[head]) == reply(theirs, HEADS[head])
    assert ours.states == theirs.states


def test_a_second_reply_on_the_same_connection():
    ours, theirs = (requested(kind(h11.SERVER)) for kind in (_Connection, h11.Connection))
    for head in ("chunked", "sized", "chunked"):
        assert reply(ours, HEADS[head]) == reply(theirs, HEADS[head])
        for connection in (ours, theirs):
            connection.start_next_cycle()
            requested(connection)


def test_data_behind_the_end_is_refused():
    ours = requested(_Connection(h11.SERVER))
    reply(ours, HEADS["chunked"])
    with pytest.raises(h11.LocalProtocolError):
        ours.send(h11.Data(data=b"late"))
