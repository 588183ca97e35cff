"""Streams of other servers, as clients of ours read them."""

import json
from typing import Any

import httpx
import pytest

from pagoda.bench.sse import ServerError, events

STREAM = "text/event-stream; charset=utf-8"


async def read(*pieces: bytes, kind: str = STREAM) -> list[dict[str, Any]]:
    async def body():
        for piece in pieces:
            yield piece

    response = httpx.Response(200, content=body(), headers={"content-type": kind})
    return [event async for event in events(response)]


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
async def test_only_line_feeds_and_carriage_returns_end_a_line(end):
    """Python's own lines end at more characters, which JSON may hold as they are."""
    payload = {"text": f"one{end}two"}
    data = "data: " + json.dumps(payload, ensure_ascii=False) + "\n\n"
    assert await read(data.encode()) == [payload]


async def test_events_cut_anywhere():
    body = (
        b': hello\r\n\r\nid: 1\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    )
    for cut in range(len(body)):
        assert await read(body[:cut], body[cut:], b"data: after\n\n") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'data: {"error": {"message": "no room"}}\n\n', STREAM, "^no room$"),
        (b"data: pardon\n\n", STREAM, "not JSON: 'pardon'"),
        (b"<html>", "text/html", "text/html instead of a stream"),
    ],
)
async def test_what_is_no_reply(body, kind, words):
    with pytest.raises(ServerError, match=words):
        await read(body, kind=kind)
