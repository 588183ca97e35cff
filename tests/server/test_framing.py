"""Where one request ends and the next begins: as RFC 9112 says, whatever the bytes.

Each file of `framing/` is a case: why, the requests that are seen, the replies and whether the
connection stays open; behind `--` the bytes, with the escapes of Python and no line ends of their
own.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pagoda.server.http1 import StreamingProtocol
from tests.server.virtual import Connection
from tests.virtual_time import in_virtual_time

FOLDER = Path(__file__).parent / "framing"


@dataclass
class Case:
    seen: list[str]
    replies: str
    data: bytes


def read_case(path: Path) -> Case:
    told, _, data = path.read_text().partition("\n--\n")
    lines = told.splitlines()
    return Case(
        [line.removeprefix("see: ") for line in lines if line.startswith("see: ")],
        lines[-1].removeprefix("replies: "),
        data.replace("\n", "").encode("ascii").decode("unicode_escape").encode("latin-1"),
    )


CASES = {path.stem: read_case(path) for path in sorted(FOLDER.iterdir())}


class Recorder:
    """Answers each request, and keeps those that were complete."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.note(scope, body)
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def note(self, scope: Any, body: bytes) -> None:
        words = (scope["method"], scope["raw_path"].decode(), body.decode())
        self.seen.append(" ".join(words).rstrip())


async def replay(pieces: Iterable[bytes]) -> tuple[list[str], str]:
    """The requests that were seen; the replies' statuses and the end, as a case tells them."""
    recorder = Recorder()
    config = uvicorn.Config(recorder, log_config=None, lifespan="off", ws="none")
    config.load()
    protocol = StreamingProtocol(config, ServerState(), {})
    connection = Connection(protocol)
    for piece in pieces:
        if connection.closed_at is None:
            connection.send(piece)
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    statuses = [part[:3].decode() for part in connection.received.split(b"HTTP/1.1 ")[1:]]
    if "100" in statuses:  # only where the body was not there at once
        statuses.remove("100")
    end = "open" if connection.closed_at is None else "closed"
    connection.close()
    await asyncio.gather(*protocol.tasks)
    return recorder.seen, " ".join([*statuses, end])


@pytest.mark.parametrize("name", CASES)
@in_virtual_time
async def test_requests_end_where_they_should(name: str) -> None:
    """However the bytes arrive."""
    case = CASES[name]
    expected = (case.seen, case.replies)
    assert await replay([case.data]) == expected
    assert await replay(case.data[i : i + 1] for i in range(len(case.data))) == expected
    for at in range(1, len(case.data), max(7, len(case.data) // 50)):
        assert await replay([case.data[:at], case.data[at:]]) == expected, at
