"""MCP servers behind /mcp: real ones, made with the SDK, over HTTP and as programs."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagoda.config.mcp import ProgramServer
from pagoda.config.server import ServerConfig
from pagoda.server.errors import ApiError
from pagoda.server.mcp import servers as servers_module
from pagoda.server.mcp.addresses import Reach
from pagoda.server.toolhub import ToolHub
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import FakeClient
from tests.server.mcp_server import PNG, make_server, over_http
from tests.server.test_errors import error_of

PROGRAM = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
WAYS = ["program", "web", "own"]


class Shop:
    """A server of Pagoda's with the shop behind it in three ways."""

    def __init__(self, server: RunningServer, url: str, notes: Path):
        self.server = server
        # Starting a program takes a second, and on a busy machine many.
        server.http.timeout = 120
        self.notes = notes
        self.own = {"id": "0123456789", "name": "own", "url": url}

    def which(self, way: str) -> Any:
        return self.own if way == "own" else way

    def tools(self, way: str) -> dict[str, dict[str, Any]]:
        reply = self.server.post("/mcp/tools", server=self.which(way))
        assert reply.status_code == 200, reply.text
        return {tool["name"]: tool for tool in reply.json()["tools"]}

    def body(self, way: str, tool: str, **arguments: Any) -> dict[str, Any]:
        digest = self.tools(way)[tool]["digest"]
        which = self.which(way)
        return {"server": which, "tool": tool, "digest": digest, "arguments": arguments}

    def call(self, way: str, tool: str, **arguments: Any) -> dict[str, Any]:
        """The last event: a result, or an error."""
        return told(self.server.post("/mcp/call", **self.body(way, tool, **arguments)).text)[-1]


def told(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]


@pytest.fixture
def pagoda(start, tmp_path) -> Iterator[Callable[..., Shop]]:
    notes = tmp_path / "notes"
    with over_http(make_server(notes)) as url:

        def pagoda(**options: Any) -> Shop:
            config = tmp_path / "mcp.json"
            program = {"command": PROGRAM[0], "args": [PROGRAM[1], str(notes)]}
            servers = {"program": program, "web": {"url": url}}
            config.write_text(json.dumps({"mcpServers": servers}))
            options = {"mcp_config": str(config), "disable_uvicorn_access_log": True, **options}
            return Shop(start(FakeClient(), ServerConfig(**options)), url, notes)

        yield pagoda


def test_the_servers_of_the_file(pagoda) -> None:
    reply = pagoda().server.http.get("/mcp/servers").json()
    servers = [{"name": "program", "transport": "stdio"}, {"name": "web", "transport": "http"}]
    assert reply == {"servers": servers, "closed": ""}


def test_tools_and_calls_in_every_way(pagoda) -> None:
    shop = pagoda()
    for way in WAYS:
        reply = shop.server.post("/mcp/tools", server=shop.which(way)).json()
        assert reply["title"] == "The shop" and reply["left_out"] == []
        add = reply["tools"][0]
        assert add["name"] == "add" and add["description"] == "Add two numbers."
        assert add["schema"]["required"] == ["a", "b"]
        found = shop.call(way, "add", a=2, b=40)
        assert found == {"kind": "result", "text": "42", "images": [], "is_error": False}


def test_what_a_tool_brings(pagoda) -> None:
    shop = pagoda()
    looked = shop.call("web", "look")
    assert looked["text"] == "seen\n[Link to prices: file:///prices: of today]"
    assert looked["images"] == [{"type": "image/png", "data": PNG}]
    failed = shop.call("web", "fail")
    assert failed["is_error"] and "nothing left" in failed["text"]
    wrong = shop.call("web", "add", a="x")
    assert wrong["is_error"] and "validation error" in wrong["text"]


def test_calls_at_once_are_kept_apart(pagoda) -> None:
    """Each way has one connection, on which several calls are under way."""
    shop = pagoda()
    bodies = [shop.body(way, "add", a=i, b=1000) for way in WAYS for i in range(5)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        waits = [pool.submit(shop.call, way, "wait", seconds=0.2) for way in WAYS]
        replies = pool.map(lambda body: shop.server.post("/mcp/call", **body).text, bodies)
        sums = [told(reply)[-1]["text"] for reply in replies]
    assert sums == [str(body["arguments"]["a"] + 1000) for body in bodies]
    assert [wait.result()["text"] for wait in waits] == ["waited"] * 3


@pytest.mark.parametrize("way", WAYS)
def test_progress_and_who_leaves_cancels(pagoda, way: str) -> None:
    shop = pagoda()
    with shop.server.http.stream("POST", "/mcp/call", json=shop.body(way, "wait")) as reply:
        first = next(line for line in reply.iter_lines() if line.startswith("data: "))
    told = {"kind": "progress", "progress": 1.0, "total": 4.0, "message": "a quarter"}
    assert json.loads(first[6:]) == told
    wait_until(lambda: shop.notes.read_text() == "waiting\ncancelled\n")
    # The connection is as good as before.
    assert shop.call(way, "add", a=1, b=1)["text"] == "2"


def test_what_was_not_agreed_to_is_not_called(pagoda) -> None:
    shop = pagoda()
    body = shop.body("web", "add", a=1, b=1)
    error = error_of(shop.server.post("/mcp/call", **{**body, "digest": "0" * 64}), 409)
    assert "not what was agreed to" in error["message"]
    error_of(shop.server.post("/mcp/call", **{**body, "tool": "gone"}), 404)
    error_of(shop.server.post("/mcp/call", **{**body, "server": "other"}), 404)
    error_of(shop.server.post("/mcp/tools", server="other"), 404)
    assert not shop.notes.exists()


@pytest.mark.parametrize(
    "server",
    [
        1, {}, {"id": "01234567", "name": "x"}, {"command": "/bin/sh", "name": "x"},
        {"id": "01234567", "name": "x", "url": "http://127.0.0.1/", "command": "/bin/sh"},
        {"id": "01234567", "name": "x", "url": "http://127.0.0.1/", "args": ["-c"]},
        {"id": "0", "name": "x", "url": "http://127.0.0.1/"},
        {"id": "01234567", "name": "x" * 65, "url": "http://127.0.0.1/"},
        {"id": "01234567", "name": "x", "url": "http://127.0.0.1/", "headers": {"Host": "evil"}},
        {"id": "01234567", "name": "x", "url": "http://127.0.0.1/", "headers": {"A": "b\r\nC: d"}},
        {"id": "01234567", "name": "x", "url": "http://127.0.0.1/", "headers": {"A b": "c"}},
    ],
)  # fmt: skip
def test_a_page_names_urls_and_never_programs(shared: RunningServer, server: Any) -> None:
    error_of(shared.post("/mcp/tools", server=server), 400)


def test_programs_get_a_small_environment(pagoda, monkeypatch) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "secret")
    shop = pagoda()
    headers = {"authorization": "Bearer secret"}
    shop.server.http.headers.update(headers)
    assert shop.call("program", "variable", name="PAGODA_API_KEY")["text"] == ""
    assert shop.call("program", "variable", name="PATH")["text"] == os.environ["PATH"]


def test_a_program_that_dies_is_started_again(pagoda) -> None:
    shop = pagoda()
    error = shop.call("program", "die")["error"]
    assert error["code"] == 502 and "it ended with exit code 3" in error["message"]
    assert "log" in error["message"]
    assert shop.call("program", "add", a=3, b=4)["text"] == "7"


async def test_a_program_that_keeps_dying_is_given_pauses(monkeypatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    hub = ToolHub([ProgramServer("gone", sys.executable, ("-c", "pass"))], Reach(True))
    monkeypatch.setattr(servers_module.asyncio, "sleep", paused)
    monkeypatch.setattr(servers_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    for _ in range(8):
        with pytest.raises(ApiError, match="ended with exit code 0"):
            await hub.tools("gone")
    assert [pause for pause in pauses if pause > 0.1] == [1, 2, 4, 8, 16, 30, 30]
    await hub.close()


async def test_a_program_that_is_not_there() -> None:
    hub = ToolHub([ProgramServer("none", "/no/such/program")], Reach(True))
    with pytest.raises(ApiError, match="cannot be started: No such file") as raised:
        await hub.tools("none")
    assert raised.value.status == 502
    await hub.close()


async def test_a_program_ends_with_all_that_it_started(tmp_path) -> None:
    """Also where its children ignore what asks them to end."""
    child = "trap '' TERM; echo $$ > child; while :; do sleep 1; done"
    script = f'cd {tmp_path}; sh -c "$0" & echo $$ > parent; exec "$@"'
    server = ProgramServer("shop", "sh", ("-c", script, child, *PROGRAM))
    hub = ToolHub([server], Reach(True))
    await hub.tools("shop")
    files = [tmp_path / "parent", tmp_path / "child"]
    while not all(file.exists() and file.read_text().strip() for file in files):
        await asyncio.sleep(0.01)
    await hub.close()
    while any(is_running(int(file.read_text())) for file in files):
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_what_a_program_prints_is_in_the_log_and_bounded(caplog, monkeypatch) -> None:
    monkeypatch.setattr("pagoda.server.mcp.program._LOG_WINDOW", math.inf)
    shout = (
        "import sys\n"
        "print('noise on the wire', flush=True)\n"
        "print('\\x1b[31mred' + 'x' * 100000, file=sys.stderr)\n"
        "for i in range(1000): print('line', i, file=sys.stderr)\n"
        "sys.stderr.flush()\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.server.mcp_server import make_server\n"
        "make_server().run()\n"
    )
    hub = ToolHub([ProgramServer("loud", sys.executable, ("-c", shout))], Reach(True))
    with caplog.at_level("INFO", logger="pagoda"):
        assert len((await hub.tools("loud")).tools) == 6
        await hub.close()
    lines = [line for line in caplog.messages if line.startswith("MCP server loud: ")]
    assert lines[0].startswith("MCP server loud: ?[31mredxxx") and len(lines[0]) < 600
    assert 2 < len(lines) <= 51


def test_an_open_server_offers_no_tools(pagoda) -> None:
    shop = pagoda(host="0.0.0.0")
    reply = shop.server.http.get("/mcp/servers").json()
    assert reply["servers"] == [] and "--api-key" in reply["closed"]
    for path in ("/mcp/tools", "/mcp/call"):
        body = {"server": "program", "tool": "add", "digest": ""}
        assert "--api-key" in error_of(shop.server.post(path, **body), 403)["message"]


def test_other_pages_and_clients_without_the_key_get_nothing(pagoda) -> None:
    shop = pagoda(api_key=("secret",))
    assert shop.server.http.get("/mcp/servers").status_code == 401
    body = {"server": "web", "tool": "add", "digest": ""}
    for path in ("/mcp/tools", "/mcp/call"):
        error_of(shop.server.post(path, **body), 401)
        headers = {"authorization": "Bearer secret", "origin": "https://evil.example"}
        error_of(shop.server.http.post(path, json=body, headers=headers), 403)
    assert not shop.notes.exists()


def test_without_the_sdk_it_says_what_to_type(start, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "pagoda.server.mcp.connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    server = start(FakeClient())
    own = {"id": "0123456789", "name": "x", "url": "http://127.0.0.1:9/"}
    error = error_of(server.post("/mcp/tools", server=own), 501)
    assert "pip install 'pagoda-llm[mcp]'" in error["message"]


def test_the_server_starts_without_the_sdk() -> None:
    """Not even with servers in the file: they cost nothing until one is used."""
    code = "import sys, pagoda.server.lifecycle; print({'mcp', 'httpx2', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
