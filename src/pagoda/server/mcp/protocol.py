"""Bodies and replies of the routes under /mcp."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from pagoda.server.protocol.common import Body

_Text = Annotated[str, Field(max_length=8192)]


class NamedUrl(BaseModel):
    """A server that a page brings along."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(
        min_length=8, max_length=128,
        description="Random, of this server in this browser: others share no session with it.",
    )  # fmt: skip
    name: str = Field(min_length=1, max_length=64)
    url: _Text
    headers: dict[str, _Text] = Field({}, max_length=16)


class McpBody(Body):
    server: str | NamedUrl = Field(
        description="One of --mcp-config by its name, `built-in` for the tools of --tools, or "
        "`{id, name, url, headers}` (streamable HTTP)."
    )


class McpCallBody(McpBody):
    tool: str
    digest: str = Field(description="Of the tool as it was listed, and agreed to.")
    arguments: dict[str, Any] = {}


class ConfiguredServer(msgspec.Struct):
    name: str
    transport: Literal["stdio", "http", "sse", "built-in"]


class McpServers(msgspec.Struct):
    servers: list[ConfiguredServer]
    """Those of --mcp-config, after the built-in tools."""
    closed: str = ""
    """Why there are none for anybody; empty where MCP is offered."""


class McpTool(msgspec.Struct):
    name: str
    title: str
    description: str
    schema: dict[str, Any]
    """JSON Schema of the arguments."""
    digest: str
    """A hash of the name, the description and the schema."""
    writes: bool = False
    """Whether a built-in one changes files or runs commands."""
    each_time: bool = False
    """Whether a page asks before each call, whatever was allowed."""


class LeftOut(msgspec.Struct):
    name: str
    reason: str


class McpTools(msgspec.Struct):
    title: str
    """What the server calls itself."""
    tools: list[McpTool]
    left_out: list[LeftOut] = []
    """Tools that a model gets no sight of, and why."""


class ServerToolBody(Body):
    tool: str = Field(description="As GET /tools names it.")
    params: dict[str, Any] = {}
    stream: bool = Field(False, description="Tell the output of exec_shell_command as it comes.")


class ToolFunction(msgspec.Struct):
    name: str
    description: str
    parameters: dict[str, Any]


class ToolDefinition(msgspec.Struct):
    function: ToolFunction
    type: Literal["function"] = "function"


class ServerTool(msgspec.Struct):
    """A tool as `tools` of a chat takes it, in `definition`."""

    display_name: str
    tool: str
    definition: ToolDefinition
    type: Literal["server", "mcp"] = "mcp"
    """`server` is a built-in one."""
    permissions: dict[str, bool] = {}
    """`write`: whether it changes something here."""


class ToolAnswer(msgspec.Struct, omit_defaults=True):
    """One of the two."""

    plain_text_response: str = ""
    error: str = ""


class ToolChunk(msgspec.Struct):
    chunk: str


class ToolDone(msgspec.Struct):
    error: str | msgspec.UnsetType = msgspec.UNSET
    done: bool = True


class McpImage(msgspec.Struct):
    type: str
    """image/png, image/jpeg, image/gif or image/webp."""
    data: str
    """The picture in base64."""


class McpProgress(msgspec.Struct, tag_field="kind", tag="progress"):
    progress: float
    total: float | None = None
    message: str | None = None
    output: str | msgspec.UnsetType = msgspec.UNSET
    """The last lines that a running command of a built-in tool has written."""


class McpResult(msgspec.Struct, tag_field="kind", tag="result"):
    text: str
    images: list[McpImage]
    is_error: bool
    """Whether the tool says that it failed."""
