"""One connection to an MCP server, through the protocol's own SDK.

Imports the SDK, which takes most of a second and 25 MB: nothing imports this before a server is
used (`servers.py`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from pagoda.base.errors import PagodaError
from pagoda.config.mcp import McpServer, ProgramServer
from pagoda.server.fetch import certificates
from pagoda.server.mcp.addresses import Reach
from pagoda.server.mcp.http import http_client
from pagoda.server.mcp.limits import (
    CALL_SECONDS,
    CONNECT_SECONDS,
    LIST_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_PAGES,
    MAX_TOOLS,
)
from pagoda.server.mcp.program import program_streams
from pagoda.version import __version__

_CALLED: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_MAX_TOLD = 500

# What servers write would stand in the log as they wrote it, tracebacks around it.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class Connection:
    """Open until `close`, or until the server ends it.

    The SDK's contexts must end in the task in which they began, so each connection has one.
    """

    def __init__(self, server: McpServer, reach: Reach | None):
        self._server = server
        self._reach = reach
        self._session: ClientSession | None = None
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = ""
        self._status = 200
        self._task = asyncio.create_task(self._run())

    @property
    def is_open(self) -> bool:
        return not self._task.done() and not self._stop.is_set() and not self._ended

    @property
    def title(self) -> str:
        """What the server calls itself; empty where it does not."""
        info = self._session.server_info if self._session is not None else None
        return "" if info is None else info.title or info.name

    async def open(self) -> None:
        """Wait until it is; PagodaError where that fails."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.shield(self._opened)
        except TimeoutError:
            raise self._fault(f"did not answer within {CONNECT_SECONDS:g} s") from None
        finally:
            if self._session is None:
                await self.close()

    async def close(self) -> None:
        self._stop.set()
        if self._session is None:
            self._task.cancel()  # still connecting, to something that does not answer
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        client = Client(
            self._transport(),
            cache=None,
            client_info=types.Implementation(name="pagoda", version=__version__),
        )
        try:
            async with client:
                self._session = client.session
                self._settle(None)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - whatever a hostile server makes of the SDK
            self._settle(self._told(error))
        finally:
            self._settle(self._fault("closed the connection"))

    def _settle(self, error: PagodaError | None) -> None:
        if self._opened.done():
            return
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)
            self._opened.exception()  # nobody may be waiting any more

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        server = self._server
        if isinstance(server, ProgramServer):
            async with program_streams(server, self._end) as pipes:
                yield pipes
            return
        known = await asyncio.to_thread(certificates)
        if server.transport == "sse":

            def client_of(*_: Any, **__: Any) -> httpx2.AsyncClient:
                return http_client(server.headers, self._reach, known, self._answered)

            async with sse_client(server.url, httpx_client_factory=client_of) as older:
                yield older
            return
        async with http_client(server.headers, self._reach, known, self._answered) as client:
            newer = streamable_http_client(
                server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            )
            async with newer as streams:
                yield streams

    def _answered(self, status: int) -> None:
        self._status = status

    def _end(self, why: str) -> None:
        self._ended = why
        self._stop.set()

    async def tools(self) -> tuple[list[types.Tool], bool]:
        """What it offers, and whether more was left out."""
        tools: list[types.Tool] = []
        cursor: str | None = None
        async with self._deadline(LIST_SECONDS):
            for _ in range(MAX_PAGES):
                params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
                page = await self._live().list_tools(params=params)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor or len(tools) > MAX_TOOLS:
                    break
        return tools[:MAX_TOOLS], bool(cursor) or len(tools) > MAX_TOOLS

    async def call(
        self, name: str, arguments: dict[str, Any], progress: ProgressFnT
    ) -> types.CallToolResult:
        """Who cancels this cancels the call there, too."""
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        async with self._deadline(self._server.call_seconds or CALL_SECONDS):
            # Not the session's `call_tool`: that checks results against the server's own schema,
            # whose patterns could keep this process busy for ever.
            result = await self._live().send_request(
                types.CallToolRequest(params=params), _CALLED, progress_callback=progress
            )
        if isinstance(result, types.InputRequiredResult):
            raise PagodaError(
                f"The tool {name!r} asks its user for further input, which this page cannot give."
            )
        return result

    def _live(self) -> ClientSession:
        if self._session is None or not self.is_open:
            raise self._fault("closed the connection")
        return self._session

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise self._fault(f"did not answer within {seconds:g} s") from None
        except Exception as error:
            raise self._told(error) from error

    def _told(self, error: BaseException) -> PagodaError:
        """What went wrong, for the user."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, PagodaError):
            return error
        if isinstance(error, MCPError):
            status = f" (HTTP status {self._status})" if self._status >= 400 else ""
            return self._fault(f"failed: {_shown(error.error.message)}{status}")
        if isinstance(error, ValidationError):
            return self._fault("does not speak the Model Context Protocol")
        return self._fault(f"cannot be reached: {_shown(str(error)) or type(error).__name__}")

    def _fault(self, what: str) -> PagodaError:
        if self._ended:
            what = f"is gone: {self._ended}"
        return PagodaError(f"The MCP server {self._server.name!r} {what}. {self._advice()}")

    def _advice(self) -> str:
        if isinstance(self._server, ProgramServer):
            return "The log of this server has what it wrote; check its command."
        if self._reach is None:
            return "Check its URL and headers in the file of --mcp-config."
        return "Check its URL and its header."


def _shown(text: str) -> str:
    """In one line, and not all of it."""
    return " ".join(text.split())[:_MAX_TOLD].rstrip(".")
