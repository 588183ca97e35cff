"""Blocks of content as parts of a chat message."""

from typing import Any

from pagoda.config.modality import modality_in
from pagoda.server.replies.translation import Part, field_of, media_part, text_part, wrong_kind

_TAKEN = "text, image, document, search_result, tool_use, tool_result and thinking"
# What tools of Anthropic's own servers leave in a conversation.
_HOSTED = ("server_tool_use", "mcp_tool_use", "mcp_tool_result", "container_upload", "compaction")


def is_hosted(block: Part) -> bool:
    """Whether the block says nothing to a model that has no such tools."""
    kind = block.get("type")
    if not isinstance(kind, str):
        return False
    return kind in _HOSTED or (kind.endswith("_tool_result") and kind != "tool_result")


def unread(block: Part) -> list[str]:
    """Types within a block whose content the model does not see."""
    content = block.get("content")
    inner = content if block.get("type") == "tool_result" and isinstance(content, list) else []
    blocks = [block, *(part for part in inner if isinstance(part, dict))]
    return ["document" for part in blocks if part.get("type") == "document" and not _has_text(part)]


def part_of(block: Part, path: str) -> Part:
    """RequestError names what is wrong, or a type that is not known."""
    match block.get("type"):
        case "text":
            return text_part(field_of(block, "text", str, path))
        case "document":
            return text_part(_document(block, path))
        case "search_result":
            return text_part(_search_result(block, path))
        case "tool_reference":
            # Tools whose loading is deferred are all loaded: the model has this one.
            return text_part(f"Tool found: {field_of(block, 'tool_name', str, path)}")
    modality = modality_in("anthropic", block.get("type"))
    if modality is None:
        raise wrong_kind(block, path, _TAKEN)
    source = field_of(block, "source", dict, path)
    if source.get("type") == "url":
        return media_part(modality, field_of(source, "url", str, f"{path}.source"))
    kind, data = (field_of(source, key, str, f"{path}.source") for key in ("media_type", "data"))
    return media_part(modality, f"data:{kind};base64,{data}")


def _has_text(block: Part) -> bool:
    source = block.get("source")
    return isinstance(source, dict) and source.get("type") in ("text", "content")


def _document(block: Part, path: str) -> str:
    source = field_of(block, "source", dict, path)
    given = [block.get(name) for name in ("title", "context")]
    head = [text for text in given if isinstance(text, str) and text]
    if source.get("type") == "text":
        return "\n".join([*head, field_of(source, "data", str, f"{path}.source")])
    if source.get("type") == "content":
        return "\n".join([*head, _texts(source, f"{path}.source")])
    kind = str(source.get("media_type") or source.get("type"))[:64]
    left_out = f"[document] (Documents of the kind {kind!r} cannot be read here; it was left out.)"
    return "\n".join([*head, left_out])


def _search_result(block: Part, path: str) -> str:
    head = [field_of(block, name, str, path) for name in ("title", "source")]
    return "\n".join([*head, _texts(block, path)])


def _texts(holder: Part, path: str) -> str:
    """Text of its `content`, which is a string or a list of text blocks."""
    content: Any = holder.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(field_of(holder, "content", list, path)):
        if not isinstance(part, dict):
            part = {}
        if part.get("type") == "text":
            texts.append(field_of(part, "text", str, f"{path}.content.{number}"))
    return "\n".join(texts)
