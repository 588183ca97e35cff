"""What /v1/responses answers: responses, their items, and the events that make them."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pagoda.server.protocol.replies import ContentLogprob

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[ContentLogprob] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = msgspec.field(default_factory=list)


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: ItemStatus = "in_progress"
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText] = msgspec.field(default_factory=list)
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str = ""


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call", kw_only=True):
    id: str
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str = ""


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = msgspec.field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokenCount(msgspec.Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class LifecycleEvent(msgspec.Struct, kw_only=True):
    """`response.` created, queued, in_progress, completed, incomplete, failed or cancelled."""

    type: str
    sequence_number: int = 0
    response: ResponseObject


class ItemEvent(msgspec.Struct, kw_only=True):
    """`response.output_item.` added or done."""

    type: str
    sequence_number: int = 0
    output_index: int
    item: OutputItem


class PartEvent(msgspec.Struct, kw_only=True):
    """`response.content_part.` added or done."""

    type: str
    sequence_number: int = 0
    output_index: int
    item_id: str
    content_index: int = 0
    part: OutputText | ReasoningText


class DeltaEvent(msgspec.Struct, kw_only=True):
    """`.delta` of text and thought, which have a content_index, arguments or a custom tool's
    input."""

    type: str
    sequence_number: int = 0
    output_index: int
    item_id: str
    content_index: int | UnsetType = UNSET
    delta: str
    logprobs: list[ContentLogprob] | UnsetType = UNSET


class DoneEvent(msgspec.Struct, kw_only=True):
    """`.done` of text, thought, arguments or a custom tool's input."""

    type: str
    sequence_number: int = 0
    output_index: int
    item_id: str
    content_index: int | UnsetType = UNSET
    text: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET


ResponseEvent = LifecycleEvent | ItemEvent | PartEvent | DeltaEvent | DoneEvent
EVENTS = (LifecycleEvent, ItemEvent, PartEvent, DeltaEvent, DoneEvent)
