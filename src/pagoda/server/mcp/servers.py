"""MCP servers, with a connection to each that is used.

The SDK of the protocol is imported when the first one is, in a thread.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import PagodaError
from pagoda.base.log import get_logger
from pagoda.config.mcp import McpServer, ProgramServer, UrlServer
from pagoda.server.errors import ApiError
from pagoda.server.mcp.addresses import Reach, check_url
from pagoda.server.mcp.limits import IDLE_SECONDS, MAX_CONNECTIONS
from pagoda.server.mcp.protocol import ConfiguredServer, McpResult, McpTools, NamedUrl
from pagoda.server.mcp.tools import listed, result_of

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from pagoda.server.mcp.connection import Connection

_log = get_logger(__name__)

_MAX_TITLE = 200
_MAX_PAUSE = 30.0
"""Seconds from one start of a program to the next, at most."""
_LIVED = 60.0
"""Who ran for so many seconds is started again at once."""
MISSING = (
    "MCP servers need a Python package that is not installed; install it with "
    "`pip install 'pagoda-llm[mcp]'` and start the server again."
)


class McpServers:
    """Those of the file, and those that pages name by their URLs."""

    def __init__(self, servers: Sequence[McpServer], reach: Reach):
        self._configured = {server.name: _Slot(server, None) for server in servers}
        self._reach = reach
        self._named: dict[str, _Slot] = {}
        """Servers that pages named, the last used one last."""
        self._closing: set[asyncio.Task[None]] = set()

    def configured(self) -> list[ConfiguredServer]:
        return [
            ConfiguredServer(
                name, "stdio" if isinstance(slot.server, ProgramServer) else _kind(slot.server)
            )
            for name, slot in self._configured.items()
        ]

    async def tools(self, which: str | NamedUrl) -> McpTools:
        """What a server offers, connecting to it if need be. ApiError says why it cannot."""
        found, _ = await self._slot(which).list()
        return found

    async def ready(self, which: str | NamedUrl, tool: str) -> "tuple[McpTools, McpCall]":
        """As `tools`, and what calls the one of this name."""
        slot = self._slot(which)
        found, connection = await slot.list()
        return found, McpCall(slot, connection, tool)

    async def close(self) -> None:
        """End every connection and every program."""
        slots = [*self._configured.values(), *self._named.values()]
        self._named.clear()
        await asyncio.gather(*(slot.drop() for slot in slots), *self._closing)

    def _slot(self, which: str | NamedUrl) -> "_Slot":
        if isinstance(which, str):
            if which not in self._configured:
                raise ApiError(
                    404, f"There is no MCP server {which[:64]!r} in the file of --mcp-config.",
                    param="server",
                )  # fmt: skip
            return self._configured[which]
        server = UrlServer(which.name, check_url(which.url), _checked_headers(which.headers))
        facts = [which.id, server.url, sorted(server.headers.items())]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        slot = self._named.pop(key, None) or _Slot(server, self._reach)
        self._named[key] = slot
        self._make_room()
        return slot

    def _make_room(self) -> None:
        now = time.monotonic()
        for key, slot in list(self._named.items())[:-1]:
            idle = not slot.in_use and now - slot.used > IDLE_SECONDS
            if idle or len(self._named) > MAX_CONNECTIONS:
                del self._named[key]
                task = asyncio.create_task(slot.drop())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


class McpCall:
    """A tool of a server that is connected to."""

    def __init__(self, slot: "_Slot", connection: "Connection", tool: str):
        self._slot = slot
        self._connection = connection
        self._tool = tool

    async def perform(
        self, arguments: dict[str, Any], progress: "ProgressFnT", watch: object = None
    ) -> McpResult:
        """ApiError where it fails; who cancels it cancels the call there, too. Output comes with
        the result alone."""
        with self._slot.using():
            try:
                result = await self._connection.call(self._tool, arguments, progress)
            except PagodaError as error:
                raise ApiError(502, str(error), param="server") from error
        return result_of(result)


class _Slot:
    """A server, and the connection to it while there is one."""

    def __init__(self, server: McpServer, reach: Reach | None):
        self.server = server
        self.used = time.monotonic()
        self.in_use = 0
        self._reach = reach
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._starts = 0
        """In a row, each soon after the last."""
        self._started = -math.inf

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """While it is entered, the connection is not given up for being idle."""
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1
            self.used = time.monotonic()

    async def list(self) -> "tuple[McpTools, Connection]":
        """Its tools as they are now. ApiError where it cannot be reached.

        A connection from before may be lost, and listing may be done twice: so it is opened anew.
        """
        with self.using():
            known = self._connection
            if known is not None:
                try:
                    return await self._list(known)
                except PagodaError as error:
                    _log.debug("MCP server %s is connected to again: %s", self.server.name, error)
            try:
                return await self._list(await self._opened())
            except ApiError:
                raise
            except PagodaError as error:
                raise ApiError(502, str(error), param="server") from error

    async def _list(self, connection: "Connection") -> "tuple[McpTools, Connection]":
        try:
            tools, more = await connection.tools()
        except PagodaError:
            await self._drop(connection)
            raise
        told, left_out = listed(tools, more)
        return McpTools(
            connection.title[:_MAX_TITLE] or self.server.name, told, left_out
        ), connection

    async def _opened(self) -> "Connection":
        made = await _connection_class()
        async with self._opening:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            await self.drop()
            if isinstance(self.server, ProgramServer):
                await self._pause()
            connection = made(self.server, self._reach)
            await connection.open()
            self._connection = connection
            return connection

    async def _pause(self) -> None:
        """A program that keeps ending is not started again and again."""
        if time.monotonic() - self._started > _LIVED:
            self._starts = 0
        if self._starts:
            pause = min(2.0 ** (self._starts - 1), _MAX_PAUSE)
            await asyncio.sleep(max(0.0, self._started + pause - time.monotonic()))
        self._starts += 1
        self._started = time.monotonic()

    async def _drop(self, connection: "Connection") -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()

    async def drop(self) -> None:
        if self._connection is not None:
            await self._drop(self._connection)


def _kind(server: McpServer) -> Any:
    return getattr(server, "transport", "http")


async def _connection_class() -> "type[Connection]":
    """In a thread: importing it takes most of a second."""

    def load() -> "type[Connection]":
        from pagoda.server.mcp.connection import Connection

        return Connection

    try:
        return await asyncio.to_thread(load)
    except ModuleNotFoundError as error:
        _log.warning("%s", MISSING)
        raise ApiError(501, MISSING) from error


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        token = name.replace("-", "").replace("_", "")
        fits = token.isascii() and token.isalnum() and value.isascii() and value.isprintable()
        if not fits or name.lower() in _OURS:
            raise ApiError(
                400, f"The header {name[:64]!r} cannot be sent to an MCP server.", param="server"
            )
    return headers


_OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "upgrade"}
)
"""What the connection itself says."""
