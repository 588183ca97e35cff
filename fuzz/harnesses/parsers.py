"""What a model writes, by every family's parser: any cut gives the same, and no text is lost.

Source: src/pagoda/text/parsers/.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from pagoda.text.parsers.base import OutputParser, ParserFamily
from pagoda.text.parsers.reply import ParsedReply, parse_reply
from pagoda.text.parsers.select import FAMILIES, parser_for

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"enum": ["C", "F"]},
                    "anything": {},
                    "again": {"$ref": "#/properties/again"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"properties": {}}}},
]
PROMPTS = ("", "<think>\n", "<|channel>thought\n", "<|start|>assistant",
           "<|start|>assistant<|channel|>final<|message|>")  # fmt: skip
WORDS = tuple(
    word.encode()
    for word in (
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>",
        "<function=now>", "</function>", "<function=weather>", "<parameter=city>", "</parameter>",
        "<parameter=days>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "now",
        "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "call:now{", "call:weather{",
        "city:", '<|"|>', "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>",
        "<|constrain|>json", "analysis", "final", "commentary to=functions.now", "<|python_tag|>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>", "\n```json\n", "\n```", "[THINK]", "[/THINK]", "[TOOL_CALLS]",
        "[ARGS]", "[CALL_ID]a1", '{"name": "now", "arguments": {', '{"name": "weather", ',
        '"arguments": {"city": "', '"', "}", "}}", "[", "]", "{", ",", ":", "\\", "\\u00", "True",
        "1e400", "α", " ", "\n", "<", "</", "<|", "｜>",
    )
)  # fmt: skip
# No markup has such letters: wherever they stand, they are content.
_LETTERS = "αβγδεζηθ"


@cache
def families() -> tuple[ParserFamily, ...]:
    by_name = {parser_for(None, name, name).name: parser_for(None, name, name) for name in FAMILIES}
    return tuple(by_name[name] for name in sorted(by_name))


def fuzz_parsers(data: bytes) -> None:
    """Three bytes say which prompt and tools there are and where the reply, the rest, is cut."""
    if len(data) < 3:
        return
    prompt, tools = PROMPTS[data[0] % len(PROMPTS)], TOOLS if data[0] < 192 else []
    text = data[3:].decode("utf-8", "replace")
    cuts = sorted({0, len(text), *range(data[1] % 17, len(text), 1 + data[2] % 23)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    for family in families():
        parser = family(prompt, tools)
        whole = parse_reply(parser, text)
        assert _fed(family(prompt, tools), pieces) == whole, family.name
        _check_text(parser, whole, text, family.name)


def _fed(parser: OutputParser, pieces: Sequence[str]) -> ParsedReply:
    reply = ParsedReply()
    for piece in pieces:
        deltas = parser.feed(piece)
        assert all(delta.text or delta.tool_name for delta in deltas)
        reply.add(deltas)
    reply.add(parser.finish())
    return reply


def _check_text(parser: OutputParser, whole: ParsedReply, text: str, name: str) -> None:
    spans = parser.text_spans
    assert "".join(text[start:end] for start, end in spans) == whole.text, name
    ends = [place for span in spans for place in span]
    assert sorted(set(ends)) == ends, name
    calls = [part for call in whole.tool_calls for part in (call.name, call.arguments)]
    content = "".join((whole.reasoning, whole.text, *calls))
    for letter in _LETTERS:
        assert content.count(letter) == text.count(letter), (name, letter)
