"""Anthropic's messages: the events of a reply, and the whole message, from one builder."""

import uuid
from copy import copy
from typing import Any

import msgspec

from pagoda.server.anthropic.errors import error_reply, status_of
from pagoda.server.errors import ApiError
from pagoda.server.protocol.anthropic import MessagesRequest
from pagoda.server.protocol.anthropic_replies import (
    AnthropicEvent,
    AnthropicReply,
    AnthropicUsage,
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ThinkingDetails,
    ToolUseBlock,
)
from pagoda.server.replies.chat_job import ChatJob
from pagoda.server.replies.events import ReplyEvent
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.sse import named_event
from pagoda.server.replies.translation import arguments_object, seal
from pagoda.text.parsers.base import Delta

# Clients send it back with the thought, and some drop thought that has none.
_SIGNATURE = "pagoda"


class MessageReply(Reply):
    """Makes the events of one message; what they add up to is the whole one."""

    last = b""

    def __init__(self, job: ChatJob, body: MessagesRequest, request_id: str | None):
        super().__init__(job.stream())
        self._head = job.head
        self._request_id = request_id
        self._shows_thought = body.thinking is None or body.thinking.display != "omitted"
        self._shortened = job.generation.sampling.max_tokens != body.max_tokens
        self._open: tuple[str, int | None] | None = None
        """Kind and number of what the last block holds, until that is complete."""
        self._pieces: list[str] = []
        self._message: AnthropicReply | None = None
        self._last: ReplyEvent | None = None

    def tell(self, event: ReplyEvent) -> bytes:
        return b"".join(map(_encode, self._events(event)))

    def waiting(self) -> bytes:
        return b"".join(map(_encode, [*self._begin(), Ping()]))

    def end(self) -> bytes:
        return b"".join(map(_encode, self._ending()))

    def whole(self) -> AnthropicReply:
        self._events(self.sums[0])
        self._ending()
        assert self._message is not None, "a generation ends with an output"
        return self._message

    def failed(self, error: ApiError) -> bytes:
        reply = error_reply(status_of(error.status), str(error), self._request_id)
        return b"event: error\ndata: " + reply + b"\n\n"

    def _events(self, event: ReplyEvent) -> list[AnthropicEvent]:
        events, self._last = self._begin(), event
        assert self._message is not None
        for delta in event.deltas:
            events += self._add_delta(self._message.content, delta)
        return events

    def _begin(self) -> list[AnthropicEvent]:
        """As late as can be: how much of the prompt was cached is known when it is computed."""
        if self._message is not None:
            return []
        head = self._head
        self._message = AnthropicReply(
            id=head.id, model=head.model, content=[], usage=self._counts()
        )
        return [MessageStart(msgspec.structs.replace(self._message, content=[])), Ping()]

    def _ending(self) -> list[AnthropicEvent]:
        message, last = self._message, self._last
        assert message is not None and last is not None, "a generation ends with an output"
        message.usage = self._counts()
        if thought := self.stream.count_thought():
            message.usage.output_tokens_details = ThinkingDetails(thought)
        message.stop_reason, message.stop_sequence = self._stop(last)
        return [
            *self._close(message.content),
            MessageDelta(StopDelta(message.stop_reason, message.stop_sequence), message.usage),
            MessageStop(),
        ]

    def _add_delta(self, content: list[ContentBlock], delta: Delta) -> list[AnthropicEvent]:
        events: list[AnthropicEvent] = []
        if self._open != (delta.kind, delta.tool_index):
            events += self._close(content)
            self._open = (delta.kind, delta.tool_index)
            content.append(_new_block(delta))
            events.append(BlockStart(len(content) - 1, copy(content[-1])))
        self._pieces.append(delta.text)
        shown = delta.kind != "reasoning" or self._shows_thought
        if delta.text and shown:
            events.append(BlockDelta(len(content) - 1, _DELTAS[delta.kind](delta.text)))
        return events

    def _close(self, content: list[ContentBlock]) -> list[AnthropicEvent]:
        """Complete the last block, if there is one."""
        if self._open is None:
            return []
        text, index = "".join(self._pieces), len(content) - 1
        self._open, self._pieces = None, []
        events: list[AnthropicEvent] = []
        match content[-1]:
            case TextBlock() as block:
                block.text = text
            case ToolUseBlock() as block:
                block.input = arguments_object(text)
            case ThinkingBlock() as block:
                block.thinking = text if self._shows_thought else ""
                block.signature = _SIGNATURE if self._shows_thought else seal(text)
                events.append(BlockDelta(index, SignatureDelta(block.signature)))
        return [*events, BlockStop(index)]

    def _stop(self, last: ReplyEvent) -> tuple[str, str | None]:
        if last.finish_reason == "length":
            return "model_context_window_exceeded" if self._shortened else "max_tokens", None
        if self.stream.readers[0].called:
            return "tool_use", None
        if isinstance(last.stop_reason, str):
            return "stop_sequence", last.stop_reason
        return "end_turn", None

    def _counts(self) -> AnthropicUsage:
        usage = self.stream.usage()
        cached = self.generation.timers[0].num_cached_tokens
        return AnthropicUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


_DELTAS: dict[str, Any] = {
    "text": TextDelta, "reasoning": ThinkingDelta, "tool_call": InputJsonDelta,
}  # fmt: skip


def _new_block(delta: Delta) -> ContentBlock:
    if delta.kind == "text":
        return TextBlock("")
    if delta.kind == "reasoning":
        return ThinkingBlock("", "")
    return ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", delta.tool_name or "", {})


def _encode(event: AnthropicEvent) -> bytes:
    return named_event(str(event.__struct_config__.tag), event)
