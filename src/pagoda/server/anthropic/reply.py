"""Anthropic's messages: the events of a reply, and the whole message, from one builder."""

import json
import uuid
from copy import copy
from typing import Any

import msgspec

from pagoda.engine.outputs import OutputDelta
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
from pagoda.server.replies.generation import Part
from pagoda.server.replies.sse import EventSource, named_event
from pagoda.server.replies.translation import seal
from pagoda.server.replies.usage import UsageCounter
from pagoda.text.parsers.base import Delta

# Clients send it back with the thought, and some drop thought that has none.
_SIGNATURE = "pagoda"


class MessageBuilder:
    """Makes the events of one message; what they add up to is `message`."""

    def __init__(self, job: ChatJob, body: MessagesRequest):
        self._job = job
        self._reader = job.reader()
        self._usage = UsageCounter(job.generation.num_prompt_tokens)
        self._shows_thought = body.thinking is None or body.thinking.display != "omitted"
        self._shortened = job.generation.sampling.max_tokens != body.max_tokens
        self._open: tuple[str, int | None] | None = None
        """Kind and number of what the last block holds, until that is complete."""
        self._pieces: list[str] = []
        self.message: AnthropicReply | None = None

    def add(self, output: OutputDelta) -> list[AnthropicEvent]:
        self._usage.add(0, len(output.token_ids), output.num_cached_tokens)
        events: list[AnthropicEvent] = []
        if self.message is None:
            # Not before the first output: only that tells how much of the prompt was cached.
            head = self._job.head
            self.message = AnthropicReply(
                id=head.id, model=head.model, content=[], usage=self._counts()
            )
            events += [MessageStart(msgspec.structs.replace(self.message, content=[])), Ping()]
        for delta in self._reader.feed(output):
            events += self._add_delta(self.message.content, delta)
        return events

    def end(self) -> list[AnthropicEvent]:
        message = self.message
        assert message is not None, "a generation ends with an output"
        message.usage = self._counts()
        thought = self._reader.count_thought(self._job.served.tokenizer.encode)
        if thought:
            message.usage.output_tokens_details = ThinkingDetails(thought)
        message.stop_reason, message.stop_sequence = self._stop()
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
                block.input = _input(text)
            case ThinkingBlock() as block:
                block.thinking = text if self._shows_thought else ""
                block.signature = _SIGNATURE if self._shows_thought else seal(text)
                events.append(BlockDelta(index, SignatureDelta(block.signature)))
        return [*events, BlockStop(index)]

    def _stop(self) -> tuple[str, str | None]:
        reader = self._reader
        if reader.finish_reason == "length":
            return "model_context_window_exceeded" if self._shortened else "max_tokens", None
        if reader.called:
            return "tool_use", None
        if isinstance(reader.stop_reason, str):
            return "stop_sequence", reader.stop_reason
        return "end_turn", None

    def _counts(self) -> AnthropicUsage:
        usage = self._usage.usage(1)
        cached = usage.prompt_tokens_details.cached_tokens
        return AnthropicUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


class StreamedMessage(EventSource):
    last = b""

    def __init__(self, builder: MessageBuilder, request_id: str | None):
        self._builder = builder
        self._request_id = request_id

    def events(self, parts: list[Part]) -> bytes:
        return b"".join([_encode(event) for _, part in parts for event in self._builder.add(part)])

    def end(self) -> bytes:
        return b"".join(map(_encode, self._builder.end()))

    def failed(self, error: ApiError) -> bytes:
        reply = error_reply(status_of(error.status), str(error), self._request_id)
        return b"event: error\ndata: " + reply + b"\n\n"


async def whole_message(builder: MessageBuilder, job: ChatJob) -> AnthropicReply:
    generation = job.generation
    with generation.started():
        while generation.running:
            await generation.arrival()
            for _, output in generation.take():
                builder.add(output)
    builder.end()
    assert builder.message is not None, "a generation ends with an output"
    return builder.message


_DELTAS: dict[str, Any] = {
    "text": TextDelta, "reasoning": ThinkingDelta, "tool_call": InputJsonDelta,
}  # fmt: skip


def _new_block(delta: Delta) -> ContentBlock:
    if delta.kind == "text":
        return TextBlock("")
    if delta.kind == "reasoning":
        return ThinkingBlock("", "")
    return ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", delta.tool_name or "", {})


def _input(arguments: str) -> dict[str, Any]:
    """What is no JSON object, since the reply was cut off or the model is wrong, is kept as
    Anthropic's clients keep it."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


def _encode(event: AnthropicEvent) -> bytes:
    return named_event(str(event.__struct_config__.tag), event)
