"""What /v1/messages answers: a message, or the events that make it."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingDetails(msgspec.Struct):
    thinking_tokens: int


class AnthropicUsage(msgspec.Struct, kw_only=True):
    """The prompt is the sum of the three counts of input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails | UnsetType = UNSET


class AnthropicReply(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: AnthropicReply


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct):
    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


AnthropicEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)
EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)
