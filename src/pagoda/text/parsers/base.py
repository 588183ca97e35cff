"""What every parser of model output is: text in, deltas out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pagoda.text.grammar.reply import ReplyForm

Kind = Literal["text", "reasoning", "tool_call"]
ToolSpecs = Sequence[Mapping[str, Any]]
"""Tools of a request in OpenAI's form: `{"type": "function", "function": {"name": ...}}`."""


# One per token: the collector need not look into strings and numbers.
class Delta(msgspec.Struct, frozen=True, gc=False):
    """A piece of output. For `tool_call`, `text` is the next piece of the arguments' JSON."""

    kind: Kind
    text: str
    tool_index: int | None = None
    """Which call of the reply, from 0; the calls come one after the other."""
    tool_name: str | None = None
    """Given once, with a call's first delta."""


def append_delta(deltas: list[Delta], delta: Delta) -> None:
    """Neighbours of one kind become one."""
    last = deltas[-1] if deltas else None
    if last is not None and last.kind == delta.kind and last.tool_index == delta.tool_index:
        text = last.text + delta.text
        deltas[-1] = Delta(last.kind, text, last.tool_index, last.tool_name)
    else:
        deltas.append(delta)


class OutputParser(ABC):
    """A state machine over one reply, made anew for each.

    The deltas do not depend on how the text was cut into pieces, but for being cut likewise.
    What might be the beginning of a tag is held back; no text is ever lost. A call counts once its
    name and the first key of its arguments are there, and is text until then; what the model gets
    wrong later stays in the arguments, which were sent already.
    """

    def __init__(self) -> None:
        self.text_spans: list[tuple[int, int]] = []
        """Where the text of the deltas so far stood in what was fed: beginnings and ends in
        characters, in order; spans that touch are one."""

    def _found_text(self, start: int, end: int) -> None:
        if self.text_spans and self.text_spans[-1][1] == start:
            start, _ = self.text_spans.pop()
        self.text_spans.append((start, end))

    @abstractmethod
    def feed(self, text: str) -> list[Delta]:
        """Take the next piece of text."""

    @abstractmethod
    def finish(self) -> list[Delta]:
        """What was held back; call it once, when the text has ended."""


@dataclass(frozen=True)
class ParserFamily:
    """How the models of one family mark up their output."""

    name: str
    create: Callable[[str, ToolSpecs], OutputParser]
    """Makes a parser of the end of the prompt, which may have opened a tag, and the tools that
    the model was given: without any, what looks like a call is text."""
    form: ReplyForm
    """How replies are written, for grammars that they must follow."""
    markup_tokens: tuple[str, ...] = ()
    """Texts of tokens that the parser must see, special ones too: it shows none of them."""

    def __call__(self, prompt: str = "", tools: ToolSpecs = ()) -> OutputParser:
        """A parser for the reply to this prompt."""
        return self.create(prompt, tools)
