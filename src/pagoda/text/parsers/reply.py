"""A reply put together from its deltas."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pagoda.text.parsers.base import Delta, OutputParser

_PIECE = 1024


@dataclass
class ToolCall:
    name: str
    arguments: str = ""
    """JSON of an object, unless the reply was cut off or the model wrote it wrong."""


@dataclass
class ParsedReply:
    reasoning: str = ""
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if delta.tool_name is not None:
                self.tool_calls.append(ToolCall(delta.tool_name))
            if delta.kind == "text":
                self.text += delta.text
            elif delta.kind == "reasoning":
                self.reasoning += delta.text
            else:
                self.tool_calls[-1].arguments += delta.text


def parse_reply(parser: OutputParser, text: str) -> ParsedReply:
    """A whole reply at once."""
    reply = ParsedReply()
    # A parser copies what is left of a piece at every tag, so pieces are short.
    for start in range(0, len(text), _PIECE):
        reply.add(parser.feed(text[start : start + _PIECE]))
    reply.add(parser.finish())
    return reply
