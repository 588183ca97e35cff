"""A served model without an engine: a byte tokenizer and a client that writes a fixed text."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagoda.base.errors import EngineDeadError
from pagoda.core.messages import (
    AddRequest,
    EngineReady,
    EngineStats,
    RequestDelta,
    TokenLogprobs,
)
from pagoda.engine.directory import ServedModel
from pagoda.text.chat_template import ChatTemplate
from pagoda.text.parsers.base import Delta, OutputParser, ParserFamily

EOS = 256
REPLY = "Hello, Wörld! Pagoda counts: one two three. 你好."


class ByteTokenizer:
    """Token i is byte i; 256 ends the text."""

    vocab_size = 257
    bos_token_id = None
    eos_token_id = EOS
    eos_token_ids = frozenset({EOS})
    special_ids = frozenset({EOS})
    strips_leading_space = False

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        return b"".join(self.token_bytes(token) for token in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ThinkParser(OutputParser):
    """Everything before the first `|` is reasoning, where the text starts with `<`."""

    def __init__(self) -> None:
        self._thinking: bool | None = None

    def feed(self, text: str) -> list[Delta]:
        deltas = []
        for character in text:
            if self._thinking is None and character == "<":
                self._thinking = True
            elif self._thinking and character == "|":
                self._thinking = False
            else:
                self._thinking = bool(self._thinking)
                deltas.append(Delta("reasoning" if self._thinking else "text", character))
        return deltas

    def finish(self) -> list[Delta]:
        return []


@dataclass
class FakeClient:
    """Writes REPLY byte by byte, or what `script` makes of a request."""

    script: Callable[[AddRequest], bytes] = lambda request: REPLY.encode()
    delay: float = 0.0
    die_after: int | None = None
    """Tokens after which the engine dies."""
    state: str = "ready"
    cause: str | None = None
    requests: list[AddRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    stats: EngineStats = field(
        default_factory=lambda: EngineStats(
            blocks_total=64, blocks_free=48, generation_tokens=7, prefix_queries=10, prefix_hits=4
        )
    )

    stopped: bool = False

    def __post_init__(self) -> None:
        self._loaded = EngineReady(
            max_model_len=2048, vocab_size=257, num_blocks=64, block_size=16, kv_tokens=1024
        )

    @property
    def ready(self) -> EngineReady | None:
        return self._loaded if self.state == "ready" else None

    def stop(self) -> None:
        self.stopped, self.state = True, "stopped"

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestDelta, None]:
        self.requests.append(request)
        self.running.add(request.req_id)
        finished = False
        try:
            for position, delta in enumerate(deltas_of(request, self.script(request))):
                if position == self.die_after:
                    finished = True
                    self.state, self.cause = "dead", "killed by a test"
                    raise EngineDeadError("killed by a test")
                finished = delta.finish_reason is not None
                yield delta
                await asyncio.sleep(self.delay)
                if self.stopped:
                    finished = True
                    raise EngineDeadError("The engine was stopped.")
        finally:
            self.running.discard(request.req_id)
            if not finished:
                self.aborted.append(request.req_id)


def deltas_of(request: AddRequest, reply: bytes) -> list[RequestDelta]:
    sampling = request.sampling
    tokens = [*reply, EOS]
    reason = "stop"
    if sampling.max_tokens is not None and sampling.max_tokens < len(tokens):
        tokens, reason = tokens[: sampling.max_tokens], "length"
    deltas = [
        RequestDelta(
            req_id=request.req_id,
            token_ids=[token],
            logprobs=None if sampling.logprobs is None else [entry(token, sampling.logprobs)],
        )
        for token in tokens
    ] or [RequestDelta(req_id=request.req_id)]
    deltas[0].num_cached_tokens = len(request.prompt_token_ids) // 2
    deltas[0].queue_seconds = 0.0
    if sampling.prompt_logprobs is not None:
        deltas[0].prompt_logprobs = [
            None,
            *(entry(token, sampling.prompt_logprobs) for token in request.prompt_token_ids[1:]),
        ]
    deltas[-1].finish_reason = reason
    deltas[-1].stop_reason = None
    return deltas


def entry(token: int, count: int) -> TokenLogprobs:
    """The chosen token is the most probable one; the others follow it in the alphabet."""
    ids = [(token + i) % 256 for i in range(count)]
    return TokenLogprobs(token, -0.5, 1, ids, [-0.5 - i for i in range(count)])


def seeded(request: AddRequest) -> bytes:
    """A text that depends on seed and temperature alone."""
    if request.sampling.greedy:
        return b"greedy"
    return hashlib.sha256(str(request.sampling.seed).encode()).hexdigest().encode()


@dataclass
class FakeTextSide:
    files: Any = None
    tokenizer: Any = field(default_factory=ByteTokenizer)
    chat_template: Any = field(default_factory=lambda: ChatTemplate({"default": TEMPLATE}, {}))
    parser: Any = field(default_factory=lambda: ParserFamily("test", lambda *_: ThinkParser()))
    markup_ids: frozenset[int] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict)


def served_model(client: FakeClient, path: Path = Path("/models/fake"), **text: Any) -> ServedModel:
    return ServedModel(
        names=("fake", "fake-alias"), client=client, text=FakeTextSide(**text), root=str(path)
    )
