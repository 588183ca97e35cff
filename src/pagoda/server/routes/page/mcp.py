"""MCP servers for the chat page: which there are, what tools they offer, and a call of one."""

import asyncio
import contextlib

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from pagoda.server.bodies.body import read_body
from pagoda.server.context import Context, context_of
from pagoda.server.errors import to_api_error
from pagoda.server.http1 import ChunkWriter
from pagoda.server.library.wanted import check_open, why_closed
from pagoda.server.mcp.protocol import (
    McpBody,
    McpCallBody,
    McpProgress,
    McpResult,
    McpServers,
    McpTools,
)
from pagoda.server.openapi import describe
from pagoda.server.replies.respond import counted, json_reply
from pagoda.server.replies.sse import SseResponse, data_event, until_disconnected
from pagoda.server.toolhub import ReadyCall, ToolHub

router = APIRouter()

_REFUSALS = (501, 502)
_OUTPUT_LINES, _OUTPUT_BYTES = 12, 2000
"""The end of a running command's output that is told, in lines and in bytes."""
_PAUSE = 0.1
"""Seconds from one event of output to the next, at least."""
_SILENCE = 5.0
"""Seconds after which a stream of a call says that it is still there."""


@router.get("/mcp/servers", openapi_extra=describe(None, McpServers))
async def servers(request: Request) -> Response:
    """Those of --mcp-config, and `built-in` for the tools of --tools."""
    context = context_of(request)
    closed = why_closed(context.config)
    return json_reply(McpServers([] if closed else context.mcp.offered(), closed))


@router.post("/mcp/tools", openapi_extra=describe(McpBody, McpTools, refusals=_REFUSALS))
async def tools(request: Request) -> Response:
    """The tools of one server, which is connected to or started if need be."""
    body = await read_body(request, McpBody)
    found = await until_disconnected(request.receive, _hub(context_of(request)).tools(body.server))
    return json_reply(found) if found is not None else Response(status_code=499)


@router.post(
    "/mcp/call",
    openapi_extra=describe(McpCallBody, None, McpProgress, McpResult, refusals=_REFUSALS),
)
async def call(request: Request) -> Response:
    """Call a tool: events of its progress, then its result or an error. Who closes the connection
    cancels the call."""
    body = await read_body(request, McpCallBody)
    context = context_of(request)
    checking = _hub(context).checked(body.server, body.tool, body.digest)
    ready = await until_disconnected(request.receive, checking)
    if ready is None:
        return Response(status_code=499)
    return _CallStream(ready, body, context)


def _hub(context: Context) -> ToolHub:
    check_open(context.config)
    return context.mcp


class _CallStream(SseResponse):
    def __init__(self, ready: ReadyCall, body: McpCallBody, context: Context):
        super().__init__(counted(context.metrics))
        self._ready = ready
        self._arguments = body.arguments
        self._news: McpProgress | None = None
        self._output = b""
        self._heard = asyncio.Event()

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        # A slow reader gets the newest alone.
        self._news = McpProgress(progress, total, None if message is None else message[:500])
        self._heard.set()

    def _watch(self, chunk: bytes) -> None:
        self._output = (self._output + chunk)[-_OUTPUT_BYTES:]
        lines = self._output.decode(errors="replace").splitlines()[-_OUTPUT_LINES:]
        self._news = McpProgress(0.0, output="\n".join(lines))
        self._heard.set()

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        async def tell(chunk: bytes) -> None:
            if not write(chunk):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        performing = self._ready.perform(self._arguments, self._progress, self._watch)
        calling = asyncio.create_task(performing)
        calling.add_done_callback(lambda _: self._heard.set())
        try:
            while not calling.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), _SILENCE)
                self._heard.clear()
                news, self._news = self._news, None
                if not calling.done():
                    await tell(b": still there\n\n" if news is None else data_event(news))
                if news is not None and news.output:
                    await asyncio.wait([calling], timeout=_PAUSE)
            last = _outcome(calling)
        finally:
            calling.cancel()
            await asyncio.wait([calling])
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _outcome(calling: "asyncio.Task[McpResult]") -> bytes:
    error = calling.exception()
    if error is None:
        return data_event(calling.result())
    return b"data: " + to_api_error(error).body() + b"\n\n"
