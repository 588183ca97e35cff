"""The file of MCP servers: what other programs write into it is read, all else is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.mcp import ProgramServer, UrlServer, read_mcp_config


@pytest.fixture
def read(tmp_path: Path):
    def read(servers: Any, raw: str | None = None):
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps({"mcpServers": servers}) if raw is None else raw)
        return read_mcp_config(str(file))

    return read


def test_no_file_is_no_server() -> None:
    assert read_mcp_config(None) == ()


def test_programs_and_urls(read, monkeypatch) -> None:
    monkeypatch.setenv("PAGODA_TEST_TOKEN", "secret")
    monkeypatch.delenv("PAGODA_TEST_GONE", raising=False)
    files, fetch, docs, old = read(
        {
            "files": {
                "command": "npx",
                "args": ["-y", "server-filesystem", "${PAGODA_TEST_GONE:-/srv}"],
                "env": {"TOKEN": "${PAGODA_TEST_TOKEN}", "PORT": 1},
                "autoApprove": ["read"],
            },
            "fetch": {"type": "stdio", "command": "uvx", "cwd": "/tmp"},
            "off": {"command": "x", "disabled": True},
            "out": {"command": "x", "enabled": False},
            "docs": {
                "type": "streamable-http",
                "url": "https://docs.example/mcp",
                "headers": {"Authorization": "Bearer ${PAGODA_TEST_TOKEN}"},
            },
            "old": {"type": "sse", "url": "http://127.0.0.1:1/sse"},
        }
    )
    assert files == ProgramServer(
        "files", "npx", ("-y", "server-filesystem", "/srv"), {"TOKEN": "secret", "PORT": "1"}
    )
    assert fetch == ProgramServer("fetch", "uvx", cwd="/tmp")
    assert docs == UrlServer(
        "docs", "https://docs.example/mcp", {"Authorization": "Bearer secret"}, "http"
    )
    assert old == UrlServer("old", "http://127.0.0.1:1/sse", {}, "sse")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "either `command`"),
        ({"command": "x", "url": "http://x"}, "either `command`"),
        ({"command": 1}, "`command` is no text"),
        ({"command": "x", "args": "y"}, "`args`"),
        ({"command": "x", "env": ["y"]}, "`env`"),
        ({"command": "x", "type": "http"}, "goes with `url`"),
        ({"url": "http://x", "type": "stdio"}, "goes with `command`"),
        ({"url": "http://x", "type": "websocket"}, "'websocket'"),
        ({"url": "file:///etc/passwd"}, "begins with http"),
        ({"url": "http://x", "headers": {"A": None}}, "`headers`"),
        ({"command": "${PAGODA_TEST_GONE}"}, "PAGODA_TEST_GONE is not set"),
        ("npx", "an object"),
    ],
)
def test_what_is_wrong_is_named_with_its_server(read, monkeypatch, fields, named) -> None:
    monkeypatch.delenv("PAGODA_TEST_GONE", raising=False)
    with pytest.raises(ConfigError, match="server 'one'") as raised:
        read({"one": fields})
    assert named in str(raised.value)


@pytest.mark.parametrize(
    "raw", ["", "{", "[]", '{"servers": {}}', '{"mcpServers": []}', "[" * 100_000, " " * 2**21]
)
def test_what_is_no_list_of_servers(read, raw: str) -> None:
    with pytest.raises(ConfigError, match=r"mcp\.json"):
        read(None, raw)


@pytest.mark.parametrize("name", ["", " ", "a" * 65, "a\nb"])
def test_names_that_nobody_can_read(read, name: str) -> None:
    with pytest.raises(ConfigError, match="a name has"):
        read({name: {"command": "x"}})


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_mcp_config(str(tmp_path / "none.json"))
