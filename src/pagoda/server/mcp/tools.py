"""What a server says of its tools and what a call brought, as far as it is taken."""

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pagoda.server.mcp.limits import (
    MAX_DESCRIPTION,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_TEXT,
    MAX_TOOL_NAME,
    MAX_TOOLS,
)
from pagoda.server.mcp.protocol import LeftOut, McpImage, McpResult, McpTool

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock, Tool

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_MAX_TITLE = 200


def listed(tools: "Iterable[Tool]", more: bool) -> tuple[list[McpTool], list[LeftOut]]:
    """Those that a model is told of, and those that are left out, with the reasons."""
    told: dict[str, McpTool] = {}
    left_out: list[LeftOut] = []
    for tool in tools:
        reason = _fault(tool, told)
        if reason:
            left_out.append(LeftOut(tool.name[:MAX_TOOL_NAME], reason))
        else:
            told[tool.name] = _told(tool)
    if more:
        left_out.append(LeftOut("...", f"a server may have {MAX_TOOLS} tools"))
    return list(told.values()), left_out


def _fault(tool: "Tool", told: dict[str, McpTool]) -> str:
    if not tool.name or len(tool.name) > MAX_TOOL_NAME:
        return f"its name is empty or has more than {MAX_TOOL_NAME} characters"
    if tool.name in told:
        return "two tools have this name; the first one counts"
    if _is_deep(tool.input_schema):
        return f"its schema is nested more than {MAX_SCHEMA_DEPTH} deep"
    if len(_canonical(tool.input_schema)) > MAX_SCHEMA_BYTES:
        return f"its schema has more than {MAX_SCHEMA_BYTES // 1024} KiB"
    if len(tool.description or "") > MAX_DESCRIPTION:
        return f"its description has more than {MAX_DESCRIPTION} characters"
    return ""


def _told(tool: "Tool") -> McpTool:
    description = tool.description or ""
    return McpTool(
        name=tool.name,
        title=(tool.title or tool.name)[:_MAX_TITLE],
        description=description,
        schema=tool.input_schema,
        digest=digest_of(tool.name, description, tool.input_schema),
    )


def digest_of(name: str, description: str, schema: dict[str, Any]) -> str:
    """A tool that keeps it is still the one that was agreed to."""
    return hashlib.sha256(_canonical([name, description, schema])).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def result_of(result: "CallToolResult") -> McpResult:
    """Its text and pictures, each up to a bound that the text names."""
    texts: list[str] = []
    images: list[McpImage] = []
    for block in result.content:
        image = _image(block)
        if image is None:
            texts.append(_text(block))
        elif len(images) == MAX_IMAGES or len(image.data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
            texts.append(f"[{image.type}: left out, too large or too many]")
        else:
            images.append(image)
    if not texts and not images and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}\n[cut here: {len(text) - MAX_TEXT} further characters]"
    return McpResult(text, images, result.is_error)


def _image(block: "ContentBlock") -> McpImage | None:
    kind, data = "", ""
    if block.type == "image":
        kind, data = block.mime_type, block.data
    elif block.type == "resource":
        kind, data = block.resource.mime_type or "", getattr(block.resource, "blob", "")
    return McpImage(kind, data) if kind in _IMAGES and data else None


def _text(block: "ContentBlock") -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        about = f": {block.description}" if block.description else ""
        return f"[Link to {block.title or block.name}: {block.uri}{about}]"
    if block.type == "resource":
        resource = block.resource
        text = getattr(resource, "text", None)
        if text is not None:
            return f"{resource.uri}\n{text}"
        return f"[{resource.mime_type or 'data'} of {resource.uri}: cannot be shown]"
    return f"[{block.mime_type}: cannot be shown]"
