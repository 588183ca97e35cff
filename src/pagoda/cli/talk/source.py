"""Where replies come from: a server, or an engine of our own; callers see no difference."""

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pagoda.text.parsers.base import Delta


@dataclass(frozen=True)
class Piece:
    """Some text of a reply."""

    kind: Literal["text", "reasoning"]
    text: str


def piece_of(delta: Delta) -> Piece:
    """What is shown of a parser's delta: thought apart; no tools are offered, so none is called."""
    return Piece("reasoning" if delta.kind == "reasoning" else "text", delta.text)


@dataclass(frozen=True)
class Usage:
    """What a finished reply cost; the last item of its stream."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    first_token_seconds: float
    total_seconds: float
    finish_reason: str | None
    draft_tokens: int = 0
    """Guessed tokens that were verified; 0 where the server does not say."""
    accepted_tokens: int = 0
    """Those of them that came true."""

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token; None for a reply too short to tell."""
        decoding = self.total_seconds - self.first_token_seconds
        return (
            (self.completion_tokens - 1) / decoding
            if self.completion_tokens > 1 and decoding > 0
            else None
        )


@dataclass
class Clock:
    """Times one reply."""

    started: float = field(default_factory=time.perf_counter)
    first: float | None = None

    def mark(self) -> None:
        if self.first is None:
            self.first = time.perf_counter()

    def usage(
        self,
        prompt: int,
        completion: int,
        cached: int,
        finish_reason: str | None,
        guesses: tuple[int, int] = (0, 0),
    ) -> Usage:
        """`guesses`: verified ones, and those that came true."""
        now = time.perf_counter()
        first = self.first or now
        return Usage(
            prompt, completion, cached, first - self.started, now - self.started, finish_reason,
            *guesses,
        )  # fmt: skip


class Source(Protocol):
    """Streams replies. `options` are request fields by OpenAI's names: temperature, seed, ..."""

    model: str
    place: str
    """For people: `at URL`, or `on this machine`."""
    max_model_len: int | None
    sees: bool | None
    """Whether it takes pictures; None where that is not known."""

    def chat(
        self, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> AsyncIterator[Piece | Usage]: ...

    def complete(self, prompt: str, options: dict[str, Any]) -> AsyncIterator[Piece | Usage]: ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What holds for options that a request leaves out, as far as that is known."""

    async def count(self, messages: list[dict[str, Any]]) -> int | None:
        """Tokens of a chat; None where that is not known."""

    async def close(self) -> None: ...
