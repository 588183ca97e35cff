"""The events of a response, and what they add up to: the only maker of both."""

import time
from typing import Literal

from msgspec.structs import replace

from pagoda.core.messages import TokenLogprobs
from pagoda.server.errors import ApiError
from pagoda.server.protocol.response_objects import (
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    LifecycleEvent,
    OutputTokensDetails,
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
from pagoda.server.responses.items import OpenItem
from pagoda.server.responses.tools import Toolbox
from pagoda.text.parsers.base import Delta


class ResponseBuilder:
    """Each method returns the next events, encoded for a stream; `response` is what they say."""

    def __init__(
        self, job: ChatJob, body: ResponsesRequest, response: ResponseObject, toolbox: Toolbox
    ):
        self.response = response
        self._toolbox = toolbox
        self.stream = job.stream(text_logprobs=LOGPROBS in body.include or bool(body.top_logprobs))
        self._cut = False
        self._told = True
        self._item: OpenItem | None = None
        self._count = 0
        self._seals = SEALED_THOUGHT in body.include
        self._top = body.top_logprobs or 0
        self._formatter = LogprobFormatter(job.served.tokenizer, as_ids=False)

    def leave_out(self) -> None:
        """Tell nothing of the output, which is one token: the prompt is computed for later."""
        self._told = False
        self.response.max_output_tokens = None

    def begin(self) -> list[bytes]:
        names = ("created", "queued" if self.response.background else "in_progress")
        return [self._lifecycle(name) for name in names]

    def add(self, event: ReplyEvent) -> list[bytes]:
        if not self._told:
            return []
        events = []
        if self.response.status == "queued":
            self.response.status = "in_progress"
            events.append(self._lifecycle("in_progress"))
        told = event.text_logprobs or [[]] * len(event.deltas)
        for delta, logprobs in zip(event.deltas, told, strict=True):
            events += map(self._encode, self._add_delta(delta, logprobs))
        self._cut = event.finish_reason == "length"
        return events

    def waiting(self) -> list[bytes]:
        """For clients that give up a stream in which they hear nothing, and know no event that
        means so. It is kept with the others, and so leaves out what is long and was told."""
        told = LifecycleEvent(
            type="response.in_progress",
            response=replace(self.response, instructions=None, tools=[], output=[]),
        )
        return [self._encode(told)] if self.response.status == "in_progress" else []

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
            self._item = OpenItem.starting(
                delta, index, self.response.id, self._toolbox, seals=self._seals
            )
            self.response.output.append(self._item.item("in_progress"))
            events += self._item.begin()
        if delta.text:
            told = self._formatter.chat(logprobs, self._top).content
            events += self._item.add(delta.text, told)
        return events

    def _close(self, status: ItemStatus) -> list[ResponseEvent]:
        item, self._item = self._item, None
        if item is None:
            return []
        self.response.output[-1], events = item.end(status)
        return events

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
