"""Replies of /api/chat and /api/generate: lines of JSON, and whole ones."""

import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from pagoda.server.errors import ApiError
from pagoda.server.ollama.errors import error_reply
from pagoda.server.protocol.ollama import (
    OllamaChat,
    OllamaFunctionCall,
    OllamaGeneration,
    OllamaLine,
    OllamaReplyMessage,
    OllamaToolCall,
)
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.translation import arguments_object
from pagoda.text.parsers.base import Delta

_NS = 1_000_000_000


@dataclass
class OllamaHead:
    """What a reply says of its request."""

    model: str
    """As it was asked for."""
    started: float = field(default_factory=time.monotonic)
    """time.monotonic() when the request came."""
    load_seconds: float = 0.0
    """Until the model was there."""
    top_logprobs: int | None = None
    """None: no logprobs."""

    def line(self) -> dict[str, Any]:
        return {"model": self.model, "created_at": timestamp()}

    @property
    def total_ns(self) -> int:
        return int((time.monotonic() - self.started) * _NS)

    @property
    def load_ns(self) -> int:
        return int(self.load_seconds * _NS)


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339; now, without `seconds` since the epoch."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Calls:
    """Tool calls of a reply: the dialect tells each at once, with an object of arguments."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._pieces: list[str] = []
        self._count = 0

    def take(self, deltas: Iterable[Delta], *, ends: bool) -> list[OllamaToolCall]:
        """Those that are complete: another delta follows, or the reply ends."""
        done = []
        for delta in deltas:
            if delta.kind != "tool_call" or delta.tool_name is not None:
                done += self._close()
            if delta.kind == "tool_call":
                self._name = delta.tool_name or self._name or ""
                self._pieces.append(delta.text)
        return done + self._close() if ends else done

    def _close(self) -> list[OllamaToolCall]:
        if self._name is None:
            return []
        arguments = arguments_object("".join(self._pieces))
        call = OllamaFunctionCall(self._count, self._name, arguments)
        self._name, self._pieces, self._count = None, [], self._count + 1
        return [OllamaToolCall(f"call_{uuid.uuid4().hex[:24]}", call)]


class OllamaReply(Reply):
    media_type = "application/x-ndjson"
    last = b""

    def __init__(self, stream: ReplyStream, head: OllamaHead):
        super().__init__(stream)
        self._head = head
        self._calls = Calls()
        self._formatter = LogprobFormatter(stream.generation.served.tokenizer, as_ids=False)

    def tell(self, event: ReplyEvent) -> bytes:
        ends = event.finish_reason is not None
        calls = self._calls.take(event.deltas, ends=ends)
        logprobs = self._head.top_logprobs is not None and event.logprobs
        told = b""
        if event.deltas or calls or logprobs:
            line = self._line(event.text, event.thought, calls)
            if line is not None or logprobs:
                line = line or self._empty()
                told = _encode(self._with_logprobs(line, event))
        if ends:
            told += _encode(self._ended(self._empty(), event))
        return told

    def waiting(self) -> bytes:
        return _encode(self._empty())

    def failed(self, error: ApiError) -> bytes:
        return error_reply(str(error)) + b"\n"

    def whole(self) -> OllamaLine:
        (event,) = self.sums
        calls = self._calls.take(event.deltas, ends=True)
        line = self._line(event.text, event.thought, calls) or self._empty()
        return self._ended(self._with_logprobs(line, event), event)

    @abstractmethod
    def _empty(self) -> OllamaLine:
        """A line that says nothing."""

    @abstractmethod
    def _line(self, text: str, thought: str, calls: list[OllamaToolCall]) -> OllamaLine | None:
        """A line that says these; None where there is nothing to say yet."""

    def _with_logprobs(self, line: OllamaLine, event: ReplyEvent) -> OllamaLine:
        top = self._head.top_logprobs
        if top is not None:
            line.logprobs = self._formatter.chat(event.logprobs, top).content
        return line

    def _ended(self, line: OllamaLine, event: ReplyEvent) -> OllamaLine:
        timer, head = self.generation.timers[0], self._head
        # Calls are no reason of their own here.
        reason = "stop" if event.finish_reason == "tool_calls" else event.finish_reason
        line.done, line.done_reason = True, reason or "stop"
        line.total_duration, line.load_duration = head.total_ns, head.load_ns
        line.prompt_eval_count = timer.num_prompt_tokens
        line.prompt_eval_duration = int(max(timer.prompt_seconds, 0) * _NS)
        line.eval_count = timer.num_tokens
        line.eval_duration = int(max(timer.decode_seconds, 0) * _NS)
        return line


class OllamaChatReply(OllamaReply):
    def _empty(self) -> OllamaLine:
        return OllamaChat(message=OllamaReplyMessage(), **self._head.line())

    def _line(self, text: str, thought: str, calls: list[OllamaToolCall]) -> OllamaLine | None:
        if not (text or thought or calls):
            return None
        message = OllamaReplyMessage(
            content=text, thinking=thought or UNSET, tool_calls=calls or UNSET
        )
        return OllamaChat(message=message, **self._head.line())


class OllamaGenerateReply(OllamaReply):
    def __init__(self, stream: ReplyStream, head: OllamaHead, *, tells_context: bool):
        super().__init__(stream, head)
        self._context = [*self.generation.prompt_ids(0)] if tells_context else None

    def tell(self, event: ReplyEvent) -> bytes:
        if self._context is not None:
            self._context += event.token_ids
        return super().tell(event)

    def add(self, event: ReplyEvent) -> None:
        if self._context is not None:
            self._context += event.token_ids
        super().add(event)

    def _empty(self) -> OllamaLine:
        return OllamaGeneration(response="", **self._head.line())

    def _line(self, text: str, thought: str, calls: list[OllamaToolCall]) -> OllamaLine | None:
        if not (text or thought):
            return None
        return OllamaGeneration(response=text, thinking=thought or UNSET, **self._head.line())

    def _ended(self, line: OllamaLine, event: ReplyEvent) -> OllamaLine:
        assert isinstance(line, OllamaGeneration)
        line.context = UNSET if self._context is None else self._context
        return super()._ended(line, event)


def _encode(line: msgspec.Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"
