"""The file of MCP servers that other programs read, too: `{"mcpServers": {NAME: {...}}}`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pagoda.base import env
from pagoda.base.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}", re.ASCII)
"""`${NAME}`, or `${NAME:-what stands for it}`."""
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")
_MAX_BYTES = 1024 * 1024
_MAX_SERVERS = 64
_MAX_NAME = 64


@dataclass(frozen=True)
class ProgramServer:
    """An MCP server that is a program: JSON-RPC over its standard input and output."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside what a program of this user needs anyway, such as PATH and HOME."""
    cwd: str | None = None


@dataclass(frozen=True)
class UrlServer:
    """An MCP server behind a URL."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: str = "http"
    """"http" is streamable HTTP, "sse" the older form of two routes."""


McpServer = ProgramServer | UrlServer


def read_mcp_config(path: str | None) -> tuple[McpServer, ...]:
    """The servers of the file that are not disabled; none without a file.

    ConfigError says which file, which server and which field cannot be read.
    """
    if path is None:
        return ()
    try:
        with Path(path).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--mcp-config {path} cannot be read: {error.strerror}.") from None
    if len(raw) > _MAX_BYTES:
        raise ConfigError(f"--mcp-config {path} has more than a megabyte; name a list of servers.")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--mcp-config {path} is not valid JSON: {error}.") from None
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(
            f"--mcp-config {path} has no servers; write "
            '{"mcpServers": {"NAME": {"command": "...", "args": []}}}.'
        )
    if len(servers) > _MAX_SERVERS:
        raise ConfigError(f"--mcp-config {path} has more than {_MAX_SERVERS} servers.")
    read = (_Entry(path, name, fields).server() for name, fields in servers.items())
    return tuple(server for server in read if server is not None)


class _Entry:
    """One server of the file."""

    def __init__(self, path: str, name: str, fields: Any):
        self._where = f"--mcp-config {path}, server {name[:_MAX_NAME]!r}"
        self._name = name
        self._fields = fields

    def server(self) -> McpServer | None:
        """None where the entry is disabled."""
        if not self._name.strip() or len(self._name) > _MAX_NAME or not self._name.isprintable():
            self._fail(f"a name has 1 to {_MAX_NAME} characters that can be printed")
        if not isinstance(self._fields, dict):
            self._fail("an object with `command` or `url` belongs there")
        if self._fields.get("disabled") is True or self._fields.get("enabled") is False:
            return None
        kind = self._fields.get("type", self._fields.get("transport"))
        if kind is not None and kind not in ("stdio", "sse", *_HTTP_TYPES):
            self._fail(f"its type is {kind!r}; there are stdio, http (streamable HTTP) and sse")
        has_command, has_url = "command" in self._fields, "url" in self._fields
        if has_command == has_url:
            self._fail("it needs either `command` (a program) or `url`")
        if has_command != (kind == "stdio") and kind is not None:
            self._fail(
                f"its type is {kind!r}, which goes with `{'url' if has_command else 'command'}`"
            )
        return self._program() if has_command else self._url(kind)

    def _program(self) -> ProgramServer:
        command = self._text("command")
        args = self._fields.get("args", [])
        if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
            self._fail("`args` is no list of texts")
        cwd = self._text("cwd") if self._fields.get("cwd") is not None else None
        return ProgramServer(
            self._name, command, tuple(map(self._expand, args)), self._texts("env"), cwd
        )

    def _url(self, kind: str | None) -> UrlServer:
        url = self._text("url")
        if not url.startswith(("http://", "https://")):
            self._fail(f"its URL is {url!r}; it begins with http:// or https://")
        return UrlServer(
            self._name, url, self._texts("headers"), "sse" if kind == "sse" else "http"
        )

    def _text(self, field: str) -> str:
        value = self._fields[field]
        if not isinstance(value, str) or not value.strip():
            self._fail(f"`{field}` is no text")
        return self._expand(value)

    def _texts(self, field: str) -> dict[str, str]:
        values = self._fields.get(field) or {}
        fits = isinstance(values, dict) and all(
            isinstance(value, str | int | float) for value in values.values()
        )
        if not fits:
            self._fail(f"`{field}` is no object of texts")
        return {key: self._expand(str(value)) for key, value in values.items()}

    def _expand(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            known = env.of_user(found[1])
            if known is None and found[2] is None:
                self._fail(
                    f"the variable {found[1]} is not set; set it, or write "
                    f"${{{found[1]}:-what stands for it}}"
                )
            return found[2] if known is None else known

        return _VARIABLE.sub(value, text)

    def _fail(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._where}: {reason}.")
