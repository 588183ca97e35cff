"""Runs a parser over a reply and puts its deltas together again."""

from collections.abc import Sequence
from typing import Any

from pagoda.text.parsers.base import Delta, ParserFamily

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What the weather will be.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"enum": ["C", "F"]},
                    "hourly": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "places": {"$ref": "#/$defs/places"},
                    "anything": {},
                },
                "$defs": {"places": {"type": "array", "items": {"type": "string"}}},
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "The time.", "parameters": {"properties": {}}},
    },
]


def feed(family: ParserFamily, pieces: Sequence[str], prompt: str, tools: Any) -> list[Delta]:
    parser = family(prompt, tools)
    return [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()


def text_spans(
    family: ParserFamily, pieces: Sequence[str], prompt: str, tools: Any
) -> list[tuple[int, int]]:
    """Where the parser says that the text of a reply stands."""
    parser = family(prompt, tools)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return parser.text_spans


def parse(
    family: ParserFamily, pieces: str | Sequence[str], prompt: str = "", tools: Any = TOOLS
) -> list[tuple[str, ...]]:
    """("text", ...), ("reasoning", ...) and ("name of a tool", arguments), neighbours joined."""
    parts: list[list[Any]] = []
    for delta in feed(family, [pieces] if isinstance(pieces, str) else pieces, prompt, tools):
        assert delta.text or delta.tool_name
        assert (delta.kind == "tool_call") == (delta.tool_index is not None)
        if delta.tool_name is not None:
            begun = sum(kind == "tool_call" for kind, *_ in parts)
            assert delta.tool_index == begun, "calls come one after the other, from 0"
            parts.append([delta.kind, delta.tool_name, delta.text])
        elif parts and parts[-1][0] == delta.kind:
            parts[-1][-1] += delta.text
        else:
            assert delta.kind != "tool_call", "a call's first delta has its name"
            parts.append([delta.kind, delta.text])
    return [tuple(part[1:] if part[0] == "tool_call" else part) for part in parts]


def split(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]
