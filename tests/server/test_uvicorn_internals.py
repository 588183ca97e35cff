"""What Pagoda uses of uvicorn beyond its documented interface is still there.

A release that moves any of it has to fail here. Then look at `server/http1.py` and
`server/lifecycle.py`, mend them, and move the range in pyproject.toml and constraints.txt.
"""

import ast
import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h11
import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pagoda.server import http1, lifecycle
from pagoda.server.http import websocket
from pagoda.server.http.websocket import SocketProtocol
from pagoda.server.http1 import IDLE_TIMEOUT, StreamingProtocol
from pagoda.server.lifecycle import _HttpServer
from tests.server.test_http1 import Application, connect, request

ROOT = Path(__file__).parents[2]
OURS = {
    StreamingProtocol: (H11Protocol, http1),
    http1._Flow: (FlowControl, http1),
    _HttpServer: (uvicorn.Server, lifecycle),
    SocketProtocol: (WebSocketsSansIOProtocol, websocket),
}


def requirements(lines: list[str]) -> list[str]:
    return [str(wanted) for line in lines if (wanted := Requirement(line)).name == "uvicorn"]


def test_the_range_is_that_of_one_minor_release_and_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    (wanted,) = requirements(project["dependencies"])
    assert requirements([line for line in constraints if line and line[0] != "#"]) == [wanted]
    installed = version("uvicorn")
    assert installed in Requirement(wanted).specifier
    major, minor, *_ = installed.split(".")
    assert f"{major}.{int(minor) + 1}" not in Requirement(wanted).specifier


async def parts() -> dict[str, Any]:
    """Uvicorn's own objects of one request, by the names under which ours reach them."""
    protocol = connect(H11Protocol, Application())
    await request(protocol)
    assert isinstance(protocol.cycle, RequestResponseCycle)
    server = uvicorn.Server(protocol.config)
    return {
        "StreamingProtocol": protocol,
        "_Flow": protocol.flow,
        "_HttpServer": server,
        "SocketProtocol": SocketProtocol(protocol.config, server.server_state, {}),
        "flow": protocol.flow,
        "cycle": protocol.cycle,
        "_http": server,
        "server_state": server.server_state,
    }


def used(module: Any, name: str) -> set[tuple[str, str]]:
    """(owner, attribute) of everything that the class takes from uvicorn's object: of itself
    whatever it never sets, and of its `flow`, `cycle` and `_http` all but its own additions."""
    (node,) = [
        n for n in ast.parse(inspect.getsource(module)).body if getattr(n, "name", "") == name
    ]
    found = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    own = {n.attr for n in found if _is_self(n.value) and isinstance(n.ctx, ast.Store)}
    own |= {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    taken = {(name, n.attr) for n in found if _is_self(n.value) and n.attr not in own}
    inner = {
        (n.value.attr, n.attr)
        for n in found
        if isinstance(n.value, ast.Attribute) and n.value.attr in ("flow", "cycle", "_http")
    }
    return taken | {pair for pair in inner if pair[1] not in vars(http1._Flow)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


async def test_every_attribute_is_there() -> None:
    there = await parts()
    names = used(http1, "StreamingProtocol") | used(http1, "_Flow") | used(lifecycle, "_HttpServer")
    names |= used(websocket, "SocketProtocol")
    names |= {pair for pair in used(lifecycle, "Lifecycle") if pair[0] == "_http"}
    # What ours replace is read there, too.
    names |= {("StreamingProtocol", "app"), ("StreamingProtocol", "timeout_keep_alive")}
    names |= {("StreamingProtocol", "flow"), ("_Flow", "read_paused"), ("server_state", "tasks")}
    assert {("StreamingProtocol", "conn"), ("cycle", "message_event"), ("_http", "server_state"),
            ("_Flow", "_transport"), ("flow", "write_paused")} <= names  # fmt: skip
    missing = [pair for pair in sorted(names) if not hasattr(there[pair[0]], pair[1])]
    assert not missing


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_what_is_replaced_is_called_as_before(ours: type) -> None:
    theirs, _ = OURS[ours]
    replaced = {
        StreamingProtocol: {"connection_made", "connection_lost", "data_received",
                            "pause_writing", "resume_writing", "send_400_response",
                            "_should_upgrade", "handle_websocket_upgrade"},
        http1._Flow: {"resume_reading"},
        _HttpServer: {"on_tick", "capture_signals"},
        SocketProtocol: {"connection_lost", "pause_writing", "resume_writing"},
    }[ours]  # fmt: skip
    common = {name for name in vars(ours) if name in vars(theirs) and not name.startswith("__")}
    assert common == replaced
    for name in replaced:
        old, new = vars(theirs)[name], vars(ours)[name]
        assert list(inspect.signature(new).parameters) == list(inspect.signature(old).parameters)
        assert inspect.iscoroutinefunction(new) == inspect.iscoroutinefunction(old)


def test_who_calls_them() -> None:
    calls = {
        "self.app": H11Protocol.handle_events,
        "self.send_400_response(msg)": H11Protocol.handle_events,
        "if self._should_upgrade():": H11Protocol.handle_events,
        "self.handle_websocket_upgrade(event)": H11Protocol.handle_events,
        "self.flow.resume_reading()": H11Protocol.on_response_complete,
        "self.timeout_keep_alive,": H11Protocol.on_response_complete,
        "await self.on_tick(counter)": uvicorn.Server.main_loop,
        "with self.capture_signals()": uvicorn.Server.serve,
    }
    for text, function in calls.items():
        assert text in inspect.getsource(function), (text, function.__qualname__)


async def test_a_request_passes_through_what_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = connect(StreamingProtocol, Application())
    transport = protocol.transport
    loop, delays = asyncio.get_running_loop(), []
    monkeypatch.setattr(protocol, "loop", _Recorded(loop, delays))
    await request(protocol)
    assert protocol.cycle.flow is protocol.flow and isinstance(protocol.flow, http1._Flow)
    assert IDLE_TIMEOUT in delays, "uvicorn's timer of idle connections has another source"
    assert protocol.conn.their_state is h11.IDLE and not transport.closed
    protocol.data_received(b"nonsense\r\n\r\n")
    status, _, rest = transport.written.rpartition(b"HTTP/1.1 ")[2].partition(b" ")
    assert status == b"400" and b'"message":"This is no valid HTTP request."' in rest


class _Recorded:
    """An event loop that notes how long its timers wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delays: list[float]):
        self._loop, self._delays = loop, delays

    def call_later(self, delay: float, *rest: Any) -> asyncio.TimerHandle:
        self._delays.append(delay)
        return self._loop.call_later(delay, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)
