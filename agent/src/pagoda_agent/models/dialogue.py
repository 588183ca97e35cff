"""What is said between the agent and a model, in no server's dialect.

`models/` turns it into HTTP requests and back, `dialects/` turns replies into actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import Action


@dataclass(frozen=True)
class Picture:
    """An encoded screenshot, as it is sent."""

    data: bytes
    media_type: str
    """image/jpeg or image/png."""
    size: tuple[int, int]
    """(width, height) in pixels of `data`, which may be smaller than the screen."""


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it; it may be broken."""


@dataclass(frozen=True)
class Message:
    """One turn. A `tool` message answers the call `tool_call_id`; pictures follow the text."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""
    """An assistant's reasoning; sent back only to servers that want it."""
    opaque: Any = None
    """What a server gave with its reply and wants back as it was (signatures of thoughts)."""
    consented: bool = False
    """The user allowed what the warnings of this tool call were about (`Parsed.warnings`)."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one call; zeros where the server did not say."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that the server had already computed."""
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True)
class Reply:
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = ""
    """`length` where the reply was cut off; else what the server said."""
    opaque: Any = None


@dataclass(frozen=True)
class Parsed:
    """A reply as actions, in the order in which they are to be carried out."""

    thought: str
    actions: tuple[Action, ...]
    call_ids: tuple[str, ...] = ()
    """The tool call of each action; empty where the dialect is text."""
    warnings: tuple[str, ...] = ()
    """The model's provider wants the user's consent before any of these actions is carried out;
    without it none may be."""


class Listed(NamedTuple):
    """A model that a server says it has."""

    name: str
    sees: bool = True
    """False where the server says that it takes no pictures; not all say."""


class ChatModel(Protocol):
    """A served model behind one API dialect."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        """One reply. Retries what may pass; may be cancelled at any time.

        `tools` are in the form that the dialect's `tools` returned for this API. Raises
        ModelError, saying what to check, once retries are over or none would help.
        """

    async def served(self) -> list[Listed]:
        """The models that its server has, in the server's order. Raises ModelError where it does
        not say."""

    async def close(self) -> None: ...


class Dialect(Protocol):
    """How one family of models is told what it can do, and how it writes what it wants done."""

    name: str

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        """The part of the system prompt that the user cannot change: what this computer cannot
        do, how positions count, how actions are written. `screen` is the size of the pictures that
        are sent."""

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        """Tools for the request; empty where the dialect is plain text."""

    def parse(self, reply: Reply, screen: tuple[int, int]) -> Parsed:
        """Raises ActionError, quoting what is wrong, for a reply that is not understood whole;
        nothing of it is carried out then. Positions are shares of the screen already."""

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        """The messages that tell the model how its actions went, before the next picture.
        `consented`: the user allowed them despite the reply's warnings."""
