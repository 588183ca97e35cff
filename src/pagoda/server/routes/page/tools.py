"""llama-server's routes for tools that the server calls: here those of --mcp-config."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.log import get_logger
from pagoda.server.bodies.body import read_body
from pagoda.server.context import Context, context_of
from pagoda.server.errors import ApiError
from pagoda.server.library.wanted import check_open
from pagoda.server.mcp.hub import Hub
from pagoda.server.mcp.protocol import (
    McpTool,
    ServerTool,
    ServerToolBody,
    ToolAnswer,
    ToolDefinition,
    ToolFunction,
)
from pagoda.server.openapi import describe
from pagoda.server.replies.respond import json_reply
from pagoda.server.replies.sse import until_disconnected

router = APIRouter()
_log = get_logger(__name__)


@router.get("/tools", openapi_extra=describe(None, ServerTool, many=True, refusals=(501,)))
async def tools(request: Request) -> Response:
    """All tools, named SERVER_TOOL; a server that cannot be reached has none, and the log says
    why."""
    hub = _hub(context_of(request))
    told = [_told(name, tool) async for name, _, tool in _all_tools(hub)]
    return json_reply(told)


@router.post("/tools", openapi_extra=describe(ServerToolBody, ToolAnswer, refusals=(501,)))
async def call(request: Request) -> Response:
    """Call one. Who closes the connection cancels the call."""
    body = await read_body(request, ServerToolBody)
    answer = await until_disconnected(request.receive, _answer(_hub(context_of(request)), body))
    return Response(status_code=499) if answer is None else json_reply(answer)


async def _answer(hub: Hub, body: ServerToolBody) -> ToolAnswer:
    async for name, server, tool in _all_tools(hub, body.tool):
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


async def _all_tools(hub: Hub, wanted: str = "") -> AsyncIterator[tuple[str, str, McpTool]]:
    """Each tool's name here, its server and itself; with `wanted` those of servers alone that the
    name may be of."""
    names = [one.name for one in hub.configured()]
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


def _told(name: str, tool: McpTool) -> ServerTool:
    function = ToolFunction(name, tool.description, tool.schema)
    return ServerTool(tool.title, name, ToolDefinition(function))


def _hub(context: Context) -> Hub:
    check_open(context.config)
    if context.config.mcp_config is None:
        raise ApiError(
            501,
            "/tools is not offered. Start the server with --mcp-config, or name tools in `tools` "
            "of a chat and call them yourself.",
        )
    return context.mcp


async def _unheard(progress: float, total: float | None, message: str | None) -> None:
    """A reply in one piece has no place for progress."""
