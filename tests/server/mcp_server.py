"""A real MCP server, made with the SDK: over standard input and output where this is a program,
over streamable HTTP in a thread."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, ResourceLink, TextContent

# One pixel.
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def make_server(notes: Path | None = None) -> MCPServer:
    """`notes`: a file that gets a line of what a tool did."""
    server: MCPServer = MCPServer("shop", title="The shop")

    def note(line: str) -> None:
        if notes is not None:
            with notes.open("a") as file:
                file.write(line + "\n")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        note(f"add {a} {b}")
        return str(a + b)

    @server.tool()
    async def wait(ctx: Context[Any, Any], seconds: float = 600) -> str:
        """Take long, and tell how far it is."""
        note("waiting")
        try:
            await ctx.report_progress(1, 4, "a quarter")
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        return "waited"

    @server.tool()
    def look() -> CallToolResult:
        """A picture, a link and a text."""
        link = ResourceLink(uri="file:///prices", name="prices", description="of today")
        image = ImageContent(data=PNG, mime_type="image/png")
        return CallToolResult(content=[TextContent(text="seen"), image, link])

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ToolError("nothing left")

    @server.tool()
    def die() -> str:
        """End the whole program."""
        note("died")
        os._exit(3)

    @server.tool()
    def variable(name: str) -> str:
        """An environment variable."""
        return os.environ.get(name, "")

    return server


class Thread:
    """An ASGI application on a free port of 127.0.0.1."""

    def __init__(self, app: Any):
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, interface="asgi3", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@contextlib.contextmanager
def over_http(server: MCPServer) -> Iterator[str]:
    """The URL of the server."""
    thread = Thread(server.streamable_http_app())
    try:
        yield thread.address + "/mcp"
    finally:
        thread.close()


if __name__ == "__main__":
    print("hello from the shop", file=sys.stderr)
    make_server(Path(sys.argv[1]) if len(sys.argv) > 1 else None).run()
