"""The built-in tools of --tools, as /tools and the chat page call them."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.server import TOOLS, ServerConfig
from tests.server.conftest import RunningServer, running, wait_until
from tests.server.fakes import FakeClient

Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(FakeClient(), ServerConfig(tools="all")) as server:
        server.http.timeout = 120  # a process starts for each call, and the machine may be busy
        yield server


@pytest.fixture
def call(server: RunningServer, tmp_path: Path) -> Call:
    def call(tool: str, **params: Any) -> dict[str, Any]:
        reply = server.http.post(
            "/tools", json={"tool": tool, "params": params}, headers={"x-tool-cwd": str(tmp_path)}
        )
        assert reply.status_code == 200, reply.text
        return reply.json()

    return call


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = reply.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_tools_are_named_as_llama_server_names_them(server: RunningServer) -> None:
    listed = server.http.get("/tools").json()
    assert [tool["tool"] for tool in listed] == list(TOOLS)
    assert {tool["type"] for tool in listed} == {"server"}
    writing = {tool["tool"] for tool in listed if tool["permissions"]["write"]}
    assert writing == {"exec_shell_command", "write_file", "edit_file"}
    assert server.chat(tools=[tool["definition"] for tool in listed]).status_code == 200


def test_a_list_offers_these_alone(start, tmp_path: Path) -> None:
    server = start(FakeClient(), ServerConfig(tools="grep_search, read_file"))
    names = [tool["tool"] for tool in server.http.get("/tools").json()]
    assert names == ["read_file", "grep_search"]
    refused = server.post("/tools", tool="exec_shell_command", params={"command": "true"})
    assert refused.status_code == 404


def test_a_name_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="there are read_file, .* and `all`"):
        ServerConfig(tools="read_file,rm")


def test_nothing_is_offered_without_the_flag_or_to_the_network(start) -> None:
    for config, status in (
        (ServerConfig(), 501),
        (ServerConfig(tools="all", host="0.0.0.0"), 403),
    ):
        server = start(FakeClient(), config)
        reply = server.post("/tools", tool="exec_shell_command", params={"command": "true"})
        assert reply.status_code == status
        page = {"server": "built-in", "tool": "get_info", "digest": "", "arguments": {}}
        assert server.http.post("/mcp/call", json=page).status_code in (403, 404)
        assert server.http.get("/mcp/servers").json()["servers"] == []


def test_a_file_is_read_as_it_is(call, tmp_path: Path) -> None:
    text = "eins\r\nzwei\n三\nend"
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert call("read_file", path="a.txt") == {"plain_text_response": text}
    part = call("read_file", path="a.txt", start_line=2, end_line=3, append_loc=True)
    assert part["plain_text_response"] == "2→zwei\n3→三\n"
    assert "it has 3 lines" in call("read_file", path="a.txt", start_line=9)["error"]


def test_a_long_file_says_how_to_read_on(call, tmp_path: Path) -> None:
    lines = [f"line {i} {'x' * 90}\n" for i in range(1, 1001)]
    (tmp_path / "long").write_text("".join(lines))
    seen, at = "", 1
    while True:
        text = call("read_file", path="long", start_line=at)["plain_text_response"]
        body, _, note = text.partition("[The file goes on. Read on with start_line=")
        seen += body
        if not note:
            break
        at = int(note.rstrip("]."))
    assert seen == "".join(lines)
    (tmp_path / "wide").write_text("ü" * 20_000 + "\nnext\n")
    wide = call("read_file", path="wide")["plain_text_response"]
    assert len(wide.encode()) < 17_000 and "Read on with start_line=2" in wide
    assert call("read_file", path="wide", start_line=2)["plain_text_response"] == "next\n"


def test_what_cannot_be_read_is_told_and_never_waited_for(call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes("Käse".encode("latin-1"))
    (tmp_path / "data").write_bytes(b"\x7fELF\0")
    for path, reason in {
        "pipe": "a pipe, a socket or a device",
        "/dev/zero": "a pipe, a socket or a device",
        "loop": "symbolic links",
        "latin": "not UTF-8",
        "data": "binary",
        ".": "is a folder",
        "gone": "No such file",
        "": "empty",
        "a\0b": "NUL",
    }.items():
        assert reason in call("read_file", path=path)["error"], path
    assert "a device" in call("write_file", path="pipe", content="x")["error"]
    assert "a device" in call("grep_search", path="/dev/zero", pattern="x")["error"]


def test_a_written_file_keeps_its_mode_and_its_link(call, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    (tmp_path / "link").symlink_to("run.sh")
    assert call("write_file", path="link", content="new 中\n")["bytes"] == 8
    assert script.read_text() == "new 中\n" and script.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "link").is_symlink()
    call("write_file", path="deep/er/file", content="")
    assert (tmp_path / "deep/er/file").read_bytes() == b""
    assert "read_file" not in str(call("write_file", path="run.sh/x", content="")["error"])


def test_edits_are_made_together_or_not_at_all(call, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\r\ntwo\r\nthree\r\n")

    def edit(*pairs: tuple[str, str]) -> dict[str, Any]:
        edits = [{"old_text": old, "new_text": new} for old, new in pairs]
        return call("edit_file", path="a.txt", edits=edits)

    before = file.read_bytes()
    for wrong, reason in (
        ([("one", "1"), ("four", "4")], "edits[1].old_text is not in"),
        ([("t", "T")], "unique"),
        ([("one\ntwo", "x"), ("two", "y")], "overlap"),
        ([("one", "one")], "No changes"),
        ([("", "x")], "old_text"),
        ([], "edits"),
    ):
        assert reason in edit(*wrong)["error"]
        assert file.read_bytes() == before
    assert edit(("two\nthree", "zwei\ndrei"), ("one", "eins"))["edits_applied"] == 2
    assert file.read_bytes() == b"eins\r\nzwei\r\ndrei\r\n"


def test_edits_at_once_lose_nothing(call, tmp_path: Path) -> None:
    names = [f"name{i}." for i in range(12)]
    (tmp_path / "shared").write_text("\n".join(names))
    with ThreadPoolExecutor(len(names)) as pool:
        done = pool.map(
            lambda name: call(
                "edit_file", path="shared", edits=[{"old_text": name, "new_text": name.upper()}]
            ),
            names,
        )
        assert all("error" not in answer for answer in done)
    assert (tmp_path / "shared").read_text() == "\n".join(names).upper()
    assert os.listdir(tmp_path) == ["shared"]


def test_globs(call, tmp_path: Path) -> None:
    for name in (
        "a.py",
        "src/b.py",
        "src/deep/c.py",
        "src/c.txt",
        ".git/x.py",
        "node_modules/y.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "src/loop").symlink_to(tmp_path)

    def found(**params: Any) -> list[str]:
        answer = call("file_glob_search", path=".", **params)
        return [entry["path"] for entry in answer["entries"]]

    assert found(include="*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert found(include="src/*.py") == ["src/b.py"]
    assert found(include="src/**/*.py", exclude="c.*") == ["src/b.py"]
    assert found(include="/*.py") == ["a.py"]
    assert found(include="[ab].p?") == ["a.py", "src/b.py"]
    assert "src/loop" in found(type="dir") and not found(include="loop/*", type="all")
    assert "no folder" in call("file_glob_search", path="a.py")["error"]


def test_names_that_are_no_utf8_are_told(call, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    assert "caf" in call("file_glob_search", path=".")["plain_text_response"]
    assert "Total matches: 1" in call("grep_search", path=".", pattern="x")["plain_text_response"]


def test_grep(call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\nTwo (2)\nthree\nfour\n")
    (tmp_path / "b.bin").write_bytes(b"Two\0")

    def found(pattern: str, **params: Any) -> str:
        return call("grep_search", path=".", pattern=pattern, **params)["plain_text_response"]

    assert found("^T").startswith("a.txt:Two (2)\n\n---\nTotal matches: 1\n")
    assert found("(2)", literal=True, return_line_numbers=True).startswith("a.txt:2:Two (2)\n")
    assert "Total matches: 2" in found("^t", ignore_case=True)
    around = found("Two", context_lines=1)
    assert around.startswith("a.txt-1-one\na.txt:2:Two (2)\na.txt-3-three\n\n")
    assert "invalid regex" in call("grep_search", path=".", pattern="(")["error"]
    (tmp_path / "many").write_text("hit\n" * 1000)
    assert "Total matches: 100\n[There may be more" in found("hit")


def test_a_pattern_that_never_ends_is_ended_and_holds_up_nobody(call, server, tmp_path) -> None:
    import pagoda.server.filetools.builtin as builtin

    (tmp_path / "a").write_text("a" * 60 + "!")
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(builtin, "_SECONDS", 2.0)
        slow = pool.submit(call, "grep_search", path=".", pattern="(a+)+$")
        while not slow.done():
            assert server.http.get("/health").status_code == 200
            time.sleep(0.05)
        assert "was ended after 2 s" in slow.result()["error"]


def test_a_command_and_its_end(call, tmp_path: Path) -> None:
    answer = call("exec_shell_command", command="pwd; echo oops >&2; exit 3")
    assert answer["plain_text_response"] == f"{tmp_path}\noops\n\n[exit code: 3]"
    assert (
        "[exit code: 137]"
        in call("exec_shell_command", command="kill -9 $$")["plain_text_response"]
    )
    # It has no input to wait for.
    assert "[exit code: 0]" in call("exec_shell_command", command="cat")["plain_text_response"]


def test_an_output_keeps_head_and_tail(call) -> None:
    text = call("exec_shell_command", command="seq 1 200000")["plain_text_response"]
    assert text.startswith("1\n2\n") and text.endswith("199999\n200000\n\n[exit code: 0]")
    assert "bytes left out" in text and len(text) < 17_000


def processes_with(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found += [entry.name] if mark.encode() in line else []
    return found


def test_a_command_ends_with_all_that_it_started(call, tmp_path: Path) -> None:
    mark = f"31536{os.getpid()}1"
    slow = call("exec_shell_command", command=f"sleep {mark} & sleep {mark}", timeout=1)
    assert "ended after 1 s" in slow["plain_text_response"]
    wait_until(lambda: not processes_with(mark))
    quick = call("exec_shell_command", command=f"sleep {mark} & echo started")
    assert quick["plain_text_response"] == "started\n\n[exit code: 0]"
    wait_until(lambda: not processes_with(mark))


def test_commands_run_behind_the_server_and_its_engine(call) -> None:
    told = call("exec_shell_command", command="sleep 0.3; nice; sh -c nice")["plain_text_response"]
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    assert told.split("\n")[:2] == [str(expected)] * 2


def test_a_client_that_leaves_ends_its_command(server: RunningServer) -> None:
    mark = f"31536{os.getpid()}2"
    command = {"command": f"echo on; sleep {mark}", "timeout": 600}
    for more in ({}, {"stream": True}):
        body = json.dumps({"tool": "exec_shell_command", "params": command, **more}).encode()
        head = f"POST /tools HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        with server.connect() as connection:
            connection.sendall(head.encode())
            connection.sendall(b"Content-Type: application/json\r\n\r\n" + body)
            wait_until(lambda: processes_with(mark))
        wait_until(lambda: not processes_with(mark))


def test_a_command_is_told_as_it_runs(server: RunningServer) -> None:
    body = {"tool": "exec_shell_command", "params": {"command": "echo hello; exit 1"}}
    told = events(server.http.post("/tools", json=body | {"stream": True}))
    assert told[-1] == {"done": True}
    assert "".join(event["chunk"] for event in told[:-1]) == "hello\n\n[exit code: 1]"
    wrong = events(server.http.post("/tools", json=body | {"stream": True, "params": {}}))
    assert wrong[-1]["done"] and "command" in wrong[-1]["error"]
    read = {"tool": "read_file", "params": {"path": "x"}, "stream": True}
    assert server.http.post("/tools", json=read).status_code == 404


def test_keys_of_the_server_are_not_the_commands(call, monkeypatch) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "secret-key")
    monkeypatch.setenv("HF_TOKEN", "secret-token")
    assert "secret" not in call("exec_shell_command", command="env")["plain_text_response"]


def test_code_of_the_working_directory_is_not_run(call, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('run')")
    assert "SystemExit" in call("read_file", path="json.py")["plain_text_response"]


def test_another_place_to_run_is_refused(server: RunningServer) -> None:
    body = {"tool": "exec_shell_command", "params": {"command": "true"}}
    for runtime, status, reason in (
        ("fake:x", 500, "unknown tool runtime"),
        ("ssh:-oProxyCommand=true", 500, "invalid ssh target"),
        ("podman-container:--privileged", 500, "invalid container id"),
        ("docker-container:0123", 501, "cannot be run through docker-container"),
    ):
        reply = server.http.post("/tools", json=body, headers={"x-tool-runtime": runtime})
        assert reply.status_code == status and reason in reply.text


def test_the_working_directory_must_be_there(server: RunningServer) -> None:
    for cwd in ("relative", "/no/such/folder"):
        for tool, params in (
            ("read_file", {"path": "x"}),
            ("exec_shell_command", {"command": "pwd"}),
        ):
            body = {"tool": tool, "params": params}
            reply = server.http.post("/tools", json=body, headers={"x-tool-cwd": cwd})
            assert cwd in reply.json()["error"]


def test_the_page_calls_them_as_it_calls_others(server: RunningServer, tmp_path: Path) -> None:
    servers = server.http.get("/mcp/servers").json()["servers"]
    assert servers == [{"name": "built-in", "transport": "built-in"}]
    listed = server.post("/mcp/tools", server="built-in").json()["tools"]
    tools = {tool["name"]: tool for tool in listed}
    assert [name for name, tool in tools.items() if tool["each_time"]] == ["exec_shell_command"]

    def ask(digest: str) -> httpx.Response:
        wanted = {"path": str(tmp_path / "new"), "content": "x"}
        return server.post(
            "/mcp/call", server="built-in", tool="write_file", digest=digest, arguments=wanted
        )

    assert ask("other").status_code == 409 and not (tmp_path / "new").exists()
    (told,) = events(ask(tools["write_file"]["digest"]))
    assert told["kind"] == "result" and not told["is_error"]
    assert "written successfully" in told["text"] and (tmp_path / "new").read_text() == "x"
