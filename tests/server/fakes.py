"""A served model without an engine: a byte tokenizer and a client that writes a fixed text."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from pagoda.base.errors import ModelNotFoundError, RequestError
from pagoda.config.adapters import AdapterConfig
from pagoda.config.engine import SchedulerConfig
from pagoda.core.messages import (
    AddRequest,
    EngineReady,
    EngineStats,
    LoadedAdapter,
    RequestDelta,
    Tiers,
    TokenLogprobs,
)
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.queue_limit import QueueLimit
from pagoda.engine.served.model import ServedModel
from pagoda.text.parsers.base import Delta, OutputParser, ParserFamily
from pagoda.text.parsers.tagged import TaggedForm
from pagoda.text.template.chat import ChatTemplate

EOS = 256
REPLY = "Hello, Wörld! Pagoda counts: one two three. 你好."


class ByteTokenizer:
    """Token i is byte i; 256 ends the text."""

    vocab_size = 257
    num_special_tokens = 0
    num_pair_tokens = 1
    bos_token_id = None
    eos_token_id = EOS
    eos_token_ids = frozenset({EOS})
    special_ids = frozenset({EOS})
    special_token_names: ClassVar[dict[str, str]] = {"eos_token": "<eos>"}
    strips_leading_space = False

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        return list(text.encode())

    def with_special(self, ids: list[int]) -> list[int]:
        return ids

    def pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        return [*first, EOS, *second], len(first) + 1

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        return b"".join(self.token_bytes(token) for token in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def vocab_entry(self, token_id: int) -> str | None:
        return self.token_text(token_id) if token_id < EOS else None


class FimTokenizer(ByteTokenizer):
    """Has tokens for filling in the middle behind the bytes, and a BOS."""

    names = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
    vocab_size = 263
    bos = 262

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        if parse_special and text in self.names:
            return [EOS + 1 + self.names.index(text)]
        return list(text.encode())

    def with_special(self, ids: list[int]) -> list[int]:
        return [self.bos, *ids]

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == self.bos:
            return b"<bos>"
        if token_id > EOS:
            return self.names[token_id - EOS - 1].encode()
        return super().token_bytes(token_id)

    def vocab_entry(self, token_id: int) -> str | None:
        return self.token_text(token_id)


TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ThinkParser(OutputParser):
    """Everything before the first `|` is reasoning, where the text starts with `<`."""

    def __init__(self) -> None:
        super().__init__()
        self._thinking: bool | None = None
        self._fed = 0

    def feed(self, text: str) -> list[Delta]:
        deltas = []
        for character in text:
            self._fed += 1
            if self._thinking is None and character == "<":
                self._thinking = True
            elif self._thinking and character == "|":
                self._thinking = False
            else:
                self._thinking = bool(self._thinking)
                deltas.append(Delta("reasoning" if self._thinking else "text", character))
                if not self._thinking:
                    self._found_text(self._fed - 1, self._fed)
        return deltas

    def finish(self) -> list[Delta]:
        return []


@dataclass
class FakeClient:
    """Writes REPLY byte by byte, or what `script` makes of a request."""

    pid = "self"

    script: Callable[[AddRequest], bytes] = lambda request: REPLY.encode()
    delay: float = 0.0
    prefix_miss: str | None = None
    cached_tiers: Tiers = Tiers()
    """Why no more than half of a prompt was cached."""
    die_after: int | None = None
    """Tokens after which the engine dies."""
    state: str = "ready"
    cause: str | None = None
    phase: str = "launch"
    down_since: float = field(default_factory=time.monotonic)
    requests: list[AddRequest] = field(default_factory=list)
    pixels: dict[str, Any] = field(default_factory=dict)
    """Of the pictures that requests had, by content hash."""
    aborted: list[str] = field(default_factory=list)
    running: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    inboxes: list[Inbox] = field(default_factory=list)
    stats: EngineStats = field(
        default_factory=lambda: EngineStats(
            blocks_total=64, blocks_free=48, generation_tokens=7, prefix_queries=10, prefix_hits=4
        )
    )

    stopped: bool = False
    asleep: bool = False
    restarts: int = 0
    stalled: str | None = None
    silent_seconds: float = 0.25
    died_at: float | None = None
    calls: list[str] = field(default_factory=list)

    adapters: KnownAdapters = field(default_factory=lambda: KnownAdapters(AdapterConfig()))
    queue: QueueLimit = field(default_factory=lambda: QueueLimit(SchedulerConfig()))

    @property
    def engines(self) -> list["FakeClient"]:
        return [self]

    @property
    def num_running(self) -> int:
        return len(self.running)

    abilities: dict[str, Any] = field(default_factory=dict)
    """Fields of EngineReady that differ from a model that writes text."""

    def __post_init__(self) -> None:
        self._loaded = EngineReady(
            **{
                "max_model_len": 2048, "vocab_size": 257, "num_blocks": 64, "block_size": 16,
                "kv_tokens": 1024, "max_num_seqs": 4, **self.abilities,
            }
        )  # fmt: skip

    @property
    def ready(self) -> EngineReady | None:
        return self._loaded if self.state == "ready" else None

    def stop(self) -> None:
        self.stopped, self.state = True, "stopped"

    async def call(self, method: str) -> Any:
        self.calls.append(method)
        return not self.running

    async def sleep(self, *, wait: bool) -> None:
        self.asleep = True
        while wait and self.running:
            await asyncio.sleep(0.01)
        for inbox in self.inboxes:
            inbox.end("The engine sleeps; POST /wake_up wakes it.")
        self.drop(list(self.running))
        await self.call("sleep")

    async def wake_up(self) -> None:
        await self.call("wake_up")
        self.asleep = False

    async def load_adapter(self, name: str, path: str) -> None:
        if path.endswith("broken"):
            raise RequestError("The adapter is broken.")
        self.adapters.named[name] = LoadedAdapter(path, f"digest of {path}", 8)

    async def unload_adapter(self, name: str) -> None:
        if self.adapters.named.pop(name, None) is None:
            raise ModelNotFoundError(f"The lora adapter {name!r} cannot be found.", "lora_name")

    def busy_adapters(self) -> tuple[list[str], list[str]]:
        return sorted(self.adapters.named), []

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        self.stop()

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        deltas = deltas_of(request, self.script(request))
        deltas[0].prefix_miss = self.prefix_miss
        deltas[0].cached_tiers = self.cached_tiers
        return deltas

    def submit(
        self, requests: Sequence[AddRequest], pixels: Mapping[str, Any] = MappingProxyType({})
    ) -> Inbox:
        self.pixels.update(pixels)
        if self.queue.active:
            assert self.ready is not None
            self.queue.admit(requests, len(self.running), self.stats, self.ready)
        inbox = Inbox()
        self.inboxes.append(inbox)
        for request in requests:
            self.requests.append(request)
            self.running[request.req_id] = asyncio.create_task(
                self._feed(inbox, request.req_id, self.deltas(request))
            )
        return inbox

    def drop(self, req_ids: Iterable[str]) -> None:
        for req_id in req_ids:
            task = self.running.pop(req_id, None)
            self.queue.forget(req_id)
            if task is not None:
                task.cancel()
                self.aborted.append(req_id)

    async def _feed(self, inbox: Inbox, req_id: str, deltas: list[RequestDelta]) -> None:
        for position, delta in enumerate(deltas):
            if position == self.die_after:
                self.state, self.cause = "dead", "killed by a test"
                self.died_at = time.monotonic()
                inbox.end("killed by a test")
                break
            inbox.put(delta)
            if delta.finish_reason is not None:
                break
            await asyncio.sleep(self.delay)
            if self.stopped:
                inbox.end("The engine was stopped.")
                break
        self.running.pop(req_id, None)
        self.queue.forget(req_id)


class Guessing(FakeClient):
    """Its steps verify four guesses, of which two come true: three tokens each."""

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        single, merged = super().deltas(request), []
        for start in range(0, len(single), 3):
            part = single[start : start + 3]
            part[0].token_ids = [token for delta in part for token in delta.token_ids]
            part[0].finish_reason = part[-1].finish_reason
            part[0].num_draft_tokens = 4 * len(merged)
            part[0].num_accepted_tokens = 2 * len(merged)
            merged.append(part[0])
        return merged


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
    parser: Any = field(
        default_factory=lambda: ParserFamily(
            "test", lambda *_: ThinkParser(), TaggedForm(None, None)
        )
    )
    markup_ids: frozenset[int] = frozenset()
    special_markup: dict[str, int] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    speech: None = None
    dictation: None = None


def served_model(client: FakeClient, path: Path = Path("/models/fake"), **text: Any) -> ServedModel:
    return ServedModel(
        names=("fake", "fake-alias"), client=client, text=FakeTextSide(**text), root=str(path)
    )
