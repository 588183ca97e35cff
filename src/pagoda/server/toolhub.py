"""What offers tools to the chat page: the built-in ones, and MCP servers."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pagoda.config.mcp import McpServer
from pagoda.server.errors import ApiError
from pagoda.server.filetools.builtin import Builtin
from pagoda.server.filetools.shell import Watch
from pagoda.server.mcp.addresses import Reach
from pagoda.server.mcp.protocol import ConfiguredServer, McpResult, McpTools, NamedUrl
from pagoda.server.mcp.servers import McpServers

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

BUILT_IN = "built-in"
"""What names the built-in tools among servers, unless the file has a server of this name."""


class ReadyCall(Protocol):
    """A call whose tool was checked just now."""

    async def perform(
        self, arguments: dict[str, Any], progress: "ProgressFnT", watch: Watch | None = None
    ) -> McpResult:
        """ApiError where it fails; who cancels it cancels the call there, too. `watch` gets the
        output of a command as it comes."""


class ToolHub:
    def __init__(self, servers: Sequence[McpServer], reach: Reach, builtin: Builtin | None = None):
        self.builtin = builtin or Builtin(())
        self.servers = McpServers(servers, reach)
        hidden = any(server.name == BUILT_IN for server in servers)
        self._own = None if hidden or not self.builtin.tools() else BUILT_IN

    def offered(self) -> list[ConfiguredServer]:
        """The built-in tools where there are any, then the servers of the file."""
        own = [ConfiguredServer(self._own, "built-in")] if self._own is not None else []
        return own + self.servers.configured()

    async def tools(self, which: str | NamedUrl) -> McpTools:
        """What is offered there. ApiError says why it cannot be known."""
        if which == self._own:
            return McpTools(which, self.builtin.tools())
        return await self.servers.tools(which)

    async def checked(self, which: str | NamedUrl, name: str, digest: str) -> ReadyCall:
        """A tool that is still as it was agreed to; ApiError 404 or 409 where it is not."""
        call: ReadyCall
        if which == self._own:
            found, call = McpTools(which, self.builtin.tools()), _BuiltinCall(self.builtin, name)
        else:
            found, call = await self.servers.ready(which, name)
        tool = next((tool for tool in found.tools if tool.name == name), None)
        if tool is None:
            raise ApiError(
                404, f"The MCP server has no tool {name[:128]!r} any more.", param="tool"
            )
        if tool.digest != digest:
            raise ApiError(
                409,
                f"The tool {name!r} is not what was agreed to: its description or its arguments "
                "have changed. List the tools again, and ask again.",
                param="digest",
            )
        return call

    async def close(self) -> None:
        """End every connection and every program of MCP servers."""
        await self.servers.close()


class _BuiltinCall:
    def __init__(self, builtin: Builtin, tool: str):
        self._builtin = builtin
        self._tool = tool

    async def perform(
        self, arguments: dict[str, Any], progress: "ProgressFnT", watch: Watch | None = None
    ) -> McpResult:
        answer = await self._builtin.call(self._tool, arguments, watch=watch)
        text = answer.get("plain_text_response", answer.get("error"))
        told = json.dumps(answer, ensure_ascii=False) if text is None else text
        return McpResult(told, [], is_error="error" in answer)
