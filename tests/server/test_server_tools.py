"""llama-server's /tools, with the tools of --mcp-config behind it."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.server.mcp_server import make_server, over_http

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))


@pytest.fixture
def serve_tools(start) -> Iterator[Callable[..., RunningServer]]:
    with over_http(make_server()) as url:

        def serve_tools(**more: Any) -> RunningServer:
            servers = json.dumps({"mcpServers": {"shop": {"url": url}, **more}})
            server: RunningServer = start(FakeClient(), ServerConfig(mcp_config=servers))
            server.http.timeout = 120  # a program takes a second to start, and here many
            return server

        yield serve_tools


def test_tools_are_listed_as_a_chat_takes_them(serve_tools) -> None:
    program = {"command": sys.executable, "args": [PROGRAM]}
    server = serve_tools(program=program, gone={"command": "no-such-program"})
    listed = {tool["tool"]: tool for tool in server.http.get("/tools").json()}
    assert {"shop_add", "program_add"} <= set(listed)
    assert not any(name.startswith("gone") for name in listed)
    definition = listed["shop_add"]["definition"]
    assert definition["type"] == "function"
    assert definition["function"]["name"] == "shop_add"
    assert definition["function"]["parameters"]["required"] == ["a", "b"]
    assert server.chat(tools=[definition]).status_code == 200


def test_tools_are_called_at_once(serve_tools) -> None:
    server = serve_tools()

    def add(number: int) -> Any:
        return server.post("/tools", tool="shop_add", params={"a": number, "b": 1}).json()

    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(add, range(8)))
    assert sums == [{"plain_text_response": str(number + 1)} for number in range(8)]


def test_what_goes_wrong_is_told(serve_tools) -> None:
    server = serve_tools()
    failed = server.post("/tools", tool="shop_fail")
    assert failed.status_code == 200 and "nothing left" in failed.json()["error"]
    unknown = server.post("/tools", tool="shop_nothing")
    assert unknown.status_code == 404 and "GET /tools lists them" in unknown.text
    assert server.post("/tools", params={}).status_code == 400


def test_a_call_may_take_so_long_and_no_longer(serve_tools) -> None:
    program = {"command": sys.executable, "args": [PROGRAM], "timeout_ms": 300}
    server = serve_tools(slow=program)
    reply = server.post("/tools", tool="slow_wait", params={"seconds": 60})
    assert "did not answer within 0.3 s" in reply.json()["error"]


def test_an_open_server_without_a_key_offers_none(start) -> None:
    servers = '{"mcpServers": {"shop": {"command": "no-such-program"}}}'
    open_to_all = ServerConfig(mcp_config=servers, host="0.0.0.0")
    server = start(FakeClient(), open_to_all)
    for reply in (server.http.get("/tools"), server.post("/tools", tool="shop_add")):
        assert reply.status_code == 403 and "--api-key" in reply.text


def test_without_servers_there_are_no_tools(shared: RunningServer) -> None:
    for reply in (shared.http.get("/tools"), shared.post("/tools", tool="x")):
        assert reply.status_code == 501 and "--mcp-config" in reply.text
