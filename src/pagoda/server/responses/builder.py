"""The events of a response, and what they add up to: the only maker of both."""

import time
import uuid
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from pagoda.core.messages import TokenLogprobs
from pagoda.server.errors import ApiError
from pagoda.server.protocol.replies import ContentLogprob
from pagoda.server.protocol.response_objects import (
    DeltaEvent,
    DoneEvent,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    ItemStatus,
    LifecycleEvent,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
)
from pagoda.server.protocol.responses import LOGPROBS, SEALED_THOUGHT, ResponsesRequest
from pagoda.server.replies.chat_job import ChatJob
from pagoda.server.replies.events import ReplyEvent
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.sse import named_event
from pagoda.server.replies.translation import seal
from pagoda.text.parsers.base import Delta

_NAMES = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "tool_call": "response.function_call_arguments",
}


class ResponseBuilder:
    """Each method returns the next events, encoded for a stream; `response` is what they say."""

    def __init__(self, job: ChatJob, body: ResponsesRequest, response: ResponseObject):
        self.response = response
        self.stream = job.stream(text_logprobs=LOGPROBS in body.include or bool(body.top_logprobs))
        self._cut = False
        self._item: _OpenItem | None = None
        self._count = 0
        self._seals = SEALED_THOUGHT in body.include
        self._top = body.top_logprobs or 0
        self._formatter = LogprobFormatter(job.served.tokenizer, as_ids=False)

    def begin(self) -> list[bytes]:
        names = ("created", "queued" if self.response.background else "in_progress")
        return [self._lifecycle(name) for name in names]

    def add(self, event: ReplyEvent) -> list[bytes]:
        events = []
        if self.response.status == "queued":
            self.response.status = "in_progress"
            events.append(self._lifecycle("in_progress"))
        told = event.text_logprobs or [[]] * len(event.deltas)
        for delta, logprobs in zip(event.deltas, told, strict=True):
            events += map(self._encode, self._add_delta(delta, logprobs))
        self._cut = event.finish_reason == "length"
        return events

    def end(self) -> list[bytes]:
        if self._cut:
            self.response.incomplete_details = IncompleteDetails("max_output_tokens")
            return self._end("incomplete")
        return self._end("completed")

    def fail(self, error: ApiError) -> list[bytes]:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        self.response.error = ResponseError(code, str(error))
        return self._end("failed")

    def cancel(self) -> list[bytes]:
        return self._end("cancelled")

    def snapshot(self) -> ResponseObject:
        """The response as far as it has come."""
        output = list(self.response.output)
        if self._item is not None:
            output[-1] = self._item.item("in_progress")
        return replace(self.response, output=output)

    def _end(
        self, status: Literal["completed", "incomplete", "failed", "cancelled"]
    ) -> list[bytes]:
        closing = self._close("completed" if status == "completed" else "incomplete")
        self.response.status = status
        if status == "completed":
            self.response.completed_at = int(time.time())
        self.response.usage = self._counts()
        return [*map(self._encode, closing), self._lifecycle(status)]

    def _add_delta(self, delta: Delta, logprobs: list[TokenLogprobs]) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if self._item is None or self._item.key != (delta.kind, delta.tool_index):
            events += self._close("completed")
            index = len(self.response.output)
            self._item = _OpenItem(delta, index, self.response.id, seals=self._seals)
            self.response.output.append(self._item.item("in_progress"))
            events += self._item.begin()
        if delta.text:
            told = self._formatter.chat(logprobs, self._top).content
            events.append(self._item.add(delta.text, told))
        return events

    def _close(self, status: ItemStatus) -> list[ResponseEvent]:
        item, self._item = self._item, None
        if item is None:
            return []
        self.response.output[-1] = item.item(status)
        return item.end(self.response.output[-1])

    def _counts(self) -> ResponseUsage:
        usage = self.stream.usage()
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(self.stream.count_thought()),
            total_tokens=usage.total_tokens,
        )

    def _lifecycle(self, name: str) -> bytes:
        return self._encode(LifecycleEvent(type=f"response.{name}", response=self.response))

    def _encode(self, event: ResponseEvent) -> bytes:
        event.sequence_number = self._count
        self._count += 1
        return named_event(event.type, event)


class _OpenItem:
    """The item of the output that is being written."""

    def __init__(self, delta: Delta, index: int, response_id: str, *, seals: bool):
        self.key = (delta.kind, delta.tool_index)
        self._kind = delta.kind
        self._name = delta.tool_name or ""
        self._index = index
        # The response's id is in them, for references to items: `store.owner_of`.
        prefix = {"text": "msg", "reasoning": "rs", "tool_call": "fc"}[delta.kind]
        self._id = f"{prefix}_{response_id.removeprefix('resp_')}_{index}"
        self._call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._seals = seals
        self._pieces: list[str] = []
        self._logprobs: list[ContentLogprob] = []

    def item(self, status: ItemStatus) -> OutputItem:
        """As far as it has come."""
        if self._kind == "tool_call":
            arguments = "".join(self._pieces)
            return FunctionCallItem(
                id=self._id, status=status, call_id=self._call_id, name=self._name,
                arguments=arguments,
            )  # fmt: skip
        part = self._part() if self._pieces or status != "in_progress" else None
        if isinstance(part, OutputText):
            return MessageItem(id=self._id, status=status, content=[part])
        if self._kind == "text":
            return MessageItem(id=self._id, status=status)
        item = ReasoningItem(id=self._id, status=status, content=[part] if part else [])
        if self._seals and part is not None:
            item.encrypted_content = seal(part.text)
        return item

    def begin(self) -> list[ResponseEvent]:
        added = ItemEvent(
            type="response.output_item.added",
            output_index=self._index,
            item=self.item("in_progress"),
        )
        return [added] if self._kind == "tool_call" else [added, self._part_event("added")]

    def add(self, text: str, logprobs: list[ContentLogprob]) -> DeltaEvent:
        self._pieces.append(text)
        self._logprobs += logprobs
        return DeltaEvent(
            type=f"{_NAMES[self._kind]}.delta",
            output_index=self._index,
            item_id=self._id,
            content_index=UNSET if self._kind == "tool_call" else 0,
            delta=text,
            logprobs=logprobs if self._kind == "text" else UNSET,
        )

    def end(self, item: OutputItem) -> list[ResponseEvent]:
        text = "".join(self._pieces)
        called = self._kind == "tool_call"
        events: list[ResponseEvent] = [
            DoneEvent(
                type=f"{_NAMES[self._kind]}.done",
                output_index=self._index,
                item_id=self._id,
                content_index=UNSET if called else 0,
                text=UNSET if called else text,
                arguments=text if called else UNSET,
                logprobs=self._logprobs if self._kind == "text" else UNSET,
            )
        ]
        if not called:
            events.append(self._part_event("done"))
        return [
            *events,
            ItemEvent(type="response.output_item.done", output_index=self._index, item=item),
        ]

    def _part(self) -> OutputText | ReasoningText:
        text = "".join(self._pieces)
        if self._kind == "text":
            return OutputText(text, logprobs=self._logprobs)
        return ReasoningText(text)

    def _part_event(self, what: Literal["added", "done"]) -> PartEvent:
        return PartEvent(
            type=f"response.content_part.{what}",
            output_index=self._index,
            item_id=self._id,
            part=self._part(),
        )
