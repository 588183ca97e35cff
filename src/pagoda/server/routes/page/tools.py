"""llama-server's routes for tools that the server calls: those of --tools and of --mcp-config."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from pagoda.base.log import get_logger
from pagoda.server.bodies.body import read_body
from pagoda.server.context import Context, context_of
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.filetools.builtin import STREAMED, Builtin
from pagoda.server.http1 import ChunkWriter
from pagoda.server.library.wanted import check_open
from pagoda.server.mcp.protocol import (
    McpTool,
    ServerTool,
    ServerToolBody,
    ToolAnswer,
    ToolChunk,
    ToolDefinition,
    ToolDone,
    ToolFunction,
)
from pagoda.server.openapi import describe
from pagoda.server.replies.respond import counted, json_reply
from pagoda.server.replies.sse import SseResponse, data_event, until_disconnected
from pagoda.server.toolhub import ToolHub

router = APIRouter()
_log = get_logger(__name__)

_INVALID = {
    "ssh": "ssh target",
    "docker-container": "container id",
    "podman-container": "container id",
}
"""What an `x-tool-runtime` names behind its kind."""


@router.get("/tools", openapi_extra=describe(None, ServerTool, many=True, refusals=(501,)))
async def tools(request: Request) -> Response:
    """All tools: built-in ones by their names, those of MCP servers as SERVER_TOOL. A server that
    cannot be reached has none, and the log says why."""
    hub = _hub(context_of(request))
    told = [_told(tool.name, tool, "server") for tool in hub.builtin.tools()]
    taken = {tool.tool for tool in told}
    async for name, _, tool in _mcp_tools(hub):
        if name not in taken:
            told.append(_told(name, tool, "mcp"))
    return json_reply(told)


@router.post(
    "/tools",
    openapi_extra=describe(ServerToolBody, ToolAnswer, ToolChunk, ToolDone, refusals=(500, 501)),
)
async def call(request: Request) -> Response:
    """Call one. A built-in tool starts at the folder of the header `x-tool-cwd`. Who closes the
    connection cancels the call, and ends its command."""
    body = await read_body(request, ServerToolBody)
    context = context_of(request)
    hub = _hub(context)
    is_builtin = any(tool.name == body.tool for tool in hub.builtin.tools())
    if body.stream and not (is_builtin and body.tool == STREAMED):
        raise ApiError(
            404, f"{body.tool[:128]!r} does not stream; leave `stream` out.", param="stream"
        )
    if not is_builtin:
        answer: Any = await until_disconnected(request.receive, _mcp_answer(hub, body))
    else:
        _check_runtime(request.headers.get("x-tool-runtime", ""))
        # Headers are read as Latin-1, and a path is what clients have in UTF-8.
        cwd = os.fsdecode(request.headers.get("x-tool-cwd", "").encode("latin-1"))
        if body.stream:
            return _OutputStream(hub.builtin, body, cwd, context)
        calling = hub.builtin.call(body.tool, body.params, cwd)
        answer = await until_disconnected(request.receive, calling)
    return Response(status_code=499) if answer is None else json_reply(answer)


def _check_runtime(runtime: str) -> None:
    """ApiError for anything: tools run here, and a client that names another place must not have
    them run here instead."""
    if not runtime:
        return
    kind, _, target = runtime.partition(":")
    if kind not in _INVALID:
        raise ApiError(
            500, f"unknown tool runtime {kind[:64]!r}; leave x-tool-runtime out to use this machine"
        )
    if not target or target.startswith("-"):
        raise ApiError(500, f"invalid {_INVALID[kind]} in x-tool-runtime")
    raise ApiError(
        501,
        f"Tools cannot be run through {kind} here: they run on the server's machine. Leave "
        "x-tool-runtime out, or run a Pagoda of its own there.",
    )


class _OutputStream(SseResponse):
    def __init__(self, builtin: Builtin, body: ServerToolBody, cwd: str, context: Context):
        super().__init__(counted(context.metrics))
        self._builtin = builtin
        self._body = body
        self._cwd = cwd

    async def _write(self, send: Send, write: ChunkWriter) -> None:
        async def tell(text: str) -> None:
            chunk = data_event(ToolChunk(text))
            if not write(chunk):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        body = self._body
        try:
            answer = await self._builtin.call(body.tool, body.params, self._cwd, tell)
            done = ToolDone(answer["error"]) if "error" in answer else ToolDone()
        except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
            done = ToolDone(str(to_api_error(error)))
        await send({"type": "http.response.body", "body": data_event(done), "more_body": False})


async def _mcp_answer(hub: ToolHub, body: ServerToolBody) -> ToolAnswer:
    async for name, server, tool in _mcp_tools(hub, body.tool):
        if name != body.tool:
            continue
        try:
            ready = await hub.checked(server, tool.name, tool.digest)
            result = await ready.perform(body.params, _unheard)
        except ApiError as error:
            return ToolAnswer(error=str(error))
        return ToolAnswer(error=result.text) if result.is_error else ToolAnswer(result.text)
    raise ApiError(
        404, f"There is no tool {body.tool[:128]!r}; GET /tools lists them.", param="tool"
    )


async def _mcp_tools(hub: ToolHub, wanted: str = "") -> AsyncIterator[tuple[str, str, McpTool]]:
    """Each tool's name here, its server and itself; with `wanted` those of servers alone that the
    name may be of."""
    names = [one.name for one in hub.servers.configured()]
    names = [name for name in names if wanted.startswith(f"{name}_" if wanted else "")]
    found = await asyncio.gather(*map(hub.tools, names), return_exceptions=True)
    seen: set[str] = set()
    for server, listed in zip(names, found, strict=True):
        if isinstance(listed, ApiError):
            _log.warning("Tools of %s are left out: %s", server, listed)
            continue
        if isinstance(listed, BaseException):
            raise listed
        for tool in listed.tools:
            name = f"{server}_{tool.name}"
            if name not in seen:
                seen.add(name)
                yield name, server, tool


def _told(name: str, tool: McpTool, kind: Any) -> ServerTool:
    function = ToolFunction(name, tool.description, tool.schema)
    return ServerTool(tool.title, name, ToolDefinition(function), kind, {"write": tool.writes})


def _hub(context: Context) -> ToolHub:
    check_open(context.config)
    if context.config.mcp_config is None and not context.config.tools:
        raise ApiError(
            501,
            "/tools is not offered. Start the server with --tools (built-in tools) or --mcp-config "
            "(those of MCP servers), or name tools in `tools` of a chat and call them yourself.",
        )
    return context.mcp


async def _unheard(progress: float, total: float | None, message: str | None) -> None:
    """A reply in one piece has no place for progress."""
