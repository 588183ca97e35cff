"""What every parser of model output is: text in, deltas out."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

Kind = Literal["text", "reasoning", "tool_call"]


class Delta(msgspec.Struct, frozen=True):
    """A piece of output. For `tool_call`, `text` is the next piece of the arguments' JSON."""

    kind: Kind
    text: str
    tool_index: int | None = None
    """Which call of the reply, from 0; the calls come one after the other."""
    tool_name: str | None = None
    """Given once, with a call's first delta."""


class OutputParser(ABC):
    """A state machine over one reply, made anew for each.

    The deltas do not depend on how the text was cut into pieces, but for being cut likewise.
    What might be the beginning of a tag is held back; no text is ever lost.
    """

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
    create: Callable[[str], OutputParser]
    """Makes a parser; its argument is the end of the prompt, which may have opened a tag."""
    reasoning_end: str | None = None
    """The tag that ends reasoning: grammars apply behind it."""

    def __call__(self, prompt: str = "") -> OutputParser:
        """A parser for the reply to this prompt."""
        return self.create(prompt)
