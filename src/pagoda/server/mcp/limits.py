"""What an MCP server may take of this one."""

CONNECT_SECONDS = 60.0
"""From nothing to a list of tools: a program may have to be fetched first, as `npx` does."""
LIST_SECONDS = 30.0
CALL_SECONDS = 600.0
IDLE_SECONDS = 600.0
"""After which the connection to a server that a page named is closed."""
MAX_CONNECTIONS = 32
"""To servers that pages named; the one unused for longest makes room."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""One JSON-RPC message: a picture in base64 fits."""
MAX_REPLY_BYTES = 16 * 1024 * 1024
"""One HTTP reply, which may be a stream of messages."""
MAX_VALUES = 100_000
"""In one reply: parsing more would keep the server from everybody else."""
MAX_LOG_LINE = 500
"""Characters of a line that a program writes to its standard error."""
MAX_LOG_LINES = 50
"""Lines in ten seconds; the rest is counted."""

MAX_TOOLS = 256
"""Per server."""
MAX_PAGES = 32
"""Into which a server may cut its list."""
MAX_TOOL_NAME = 128
MAX_DESCRIPTION = 8192
MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 32

MAX_TEXT = 100_000
"""Characters of a result."""
MAX_IMAGES = 4
MAX_IMAGE_BYTES = 4 * 1024 * 1024
"""Bytes of a picture, decoded."""


def values_in(data: bytes) -> int:
    """About how many values JSON has, counted in a moment; commas of its texts count, too."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")
