"""An item of a response's output while it is written."""

import uuid
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from pagoda.server.protocol.replies import ContentLogprob
from pagoda.server.protocol.response_objects import (
    CustomCallItem,
    DeltaEvent,
    DoneEvent,
    FunctionCallItem,
    ItemEvent,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
)
from pagoda.server.replies.translation import seal
from pagoda.server.responses.tools import Called, CustomInput, Toolbox
from pagoda.text.parsers.base import Delta


class OpenItem:
    """Each method returns the next events; `starting` makes the item that a delta begins."""

    events: str
    """What its `.delta` and `.done` are called."""
    prefix: str
    """How its id begins."""

    def __init__(self, delta: Delta, index: int, response_id: str):
        self.key = (delta.kind, delta.tool_index)
        self._index = index
        # The response's id is in it, for references to items: `store.owner_of`.
        self._id = f"{self.prefix}_{response_id.removeprefix('resp_')}_{index}"
        self._pieces: list[str] = []

    @staticmethod
    def starting(
        delta: Delta, index: int, response_id: str, toolbox: Toolbox, *, seals: bool
    ) -> "OpenItem":
        if delta.kind == "text":
            return _OpenText(delta, index, response_id)
        if delta.kind == "reasoning":
            return _OpenThought(delta, index, response_id, seals=seals)
        called = toolbox.called(delta.tool_name or "")
        return (_OpenCustomCall if called.custom else _OpenCall)(delta, index, response_id, called)

    def item(self, status: ItemStatus) -> OutputItem:
        """As far as it has come."""
        raise NotImplementedError

    def begin(self) -> list[ResponseEvent]:
        added = ItemEvent(
            type="response.output_item.added",
            output_index=self._index,
            item=self.item("in_progress"),
        )
        return [added, *self._part_events("added")]

    def add(self, text: str, logprobs: list[ContentLogprob]) -> list[ResponseEvent]:
        self._pieces.append(text)
        return [self._delta(text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[ResponseEvent]]:
        """The whole item, too."""
        item = self.item(status)
        done = ItemEvent(type="response.output_item.done", output_index=self._index, item=item)
        return item, [self._done(), *self._part_events("done"), done]

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def _delta(self, text: str, **more: Any) -> DeltaEvent:
        return DeltaEvent(
            type=f"{self.events}.delta", output_index=self._index, item_id=self._id, delta=text,
            **more,
        )  # fmt: skip

    def _done(self) -> DoneEvent:
        return DoneEvent(
            type=f"{self.events}.done", output_index=self._index, item_id=self._id, **self._whole()
        )

    def _whole(self) -> dict[str, Any]:
        """What `.done` says."""
        return {"content_index": 0, "text": self._text}

    def _part_events(self, what: Literal["added", "done"]) -> list[ResponseEvent]:
        part = self._part()
        if part is None:
            return []
        return [
            PartEvent(
                type=f"response.content_part.{what}",
                output_index=self._index,
                item_id=self._id,
                part=part,
            )
        ]

    def _part(self) -> OutputText | ReasoningText | None:
        """None for items that have none."""
        return None


class _OpenText(OpenItem):
    events = "response.output_text"
    prefix = "msg"

    def __init__(self, delta: Delta, index: int, response_id: str):
        super().__init__(delta, index, response_id)
        self._logprobs: list[ContentLogprob] = []

    def item(self, status: ItemStatus) -> MessageItem:
        content = [self._part()] if self._pieces or status != "in_progress" else []
        return MessageItem(id=self._id, status=status, content=content)

    def add(self, text: str, logprobs: list[ContentLogprob]) -> list[ResponseEvent]:
        self._pieces.append(text)
        self._logprobs += logprobs
        return [self._delta(text, content_index=0, logprobs=logprobs)]

    def _whole(self) -> dict[str, Any]:
        return {**super()._whole(), "logprobs": self._logprobs}

    def _part(self) -> OutputText:
        return OutputText(self._text, logprobs=self._logprobs)


class _OpenThought(OpenItem):
    events = "response.reasoning_text"
    prefix = "rs"

    def __init__(self, delta: Delta, index: int, response_id: str, *, seals: bool):
        super().__init__(delta, index, response_id)
        self._seals = seals

    def item(self, status: ItemStatus) -> ReasoningItem:
        content = [self._part()] if self._pieces or status != "in_progress" else []
        item = ReasoningItem(id=self._id, status=status, content=content)
        if self._seals and content:
            item.encrypted_content = seal(self._text)
        return item

    def add(self, text: str, logprobs: list[ContentLogprob]) -> list[ResponseEvent]:
        self._pieces.append(text)
        return [self._delta(text, content_index=0)]

    def _part(self) -> ReasoningText:
        return ReasoningText(self._text)


class _OpenCall(OpenItem):
    events = "response.function_call_arguments"
    prefix = "fc"

    def __init__(self, delta: Delta, index: int, response_id: str, called: Called):
        super().__init__(delta, index, response_id)
        self._called = called
        self._call_id = f"call_{uuid.uuid4().hex[:24]}"

    @property
    def _namespace(self) -> str | UnsetType:
        return UNSET if self._called.namespace is None else self._called.namespace

    def item(self, status: ItemStatus) -> OutputItem:
        return FunctionCallItem(
            id=self._id, status=status, call_id=self._call_id, name=self._called.name,
            namespace=self._namespace, arguments=self._text,
        )  # fmt: skip

    def _whole(self) -> dict[str, Any]:
        return {"arguments": self._text}


class _OpenCustomCall(_OpenCall):
    events = "response.custom_tool_call_input"
    prefix = "ctc"

    def __init__(self, delta: Delta, index: int, response_id: str, called: Called):
        super().__init__(delta, index, response_id, called)
        self._input = CustomInput()

    def item(self, status: ItemStatus) -> CustomCallItem:
        return CustomCallItem(
            id=self._id, status=status, call_id=self._call_id, name=self._called.name,
            namespace=self._namespace, input=self._text,
        )  # fmt: skip

    def add(self, text: str, logprobs: list[ContentLogprob]) -> list[ResponseEvent]:
        known = self._input.feed(text)
        return super().add(known, logprobs) if known else []

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[ResponseEvent]]:
        rest = self._input.finish()
        events = super().add(rest, []) if rest else []
        item, ending = super().end(status)
        return item, [*events, *ending]

    def _whole(self) -> dict[str, Any]:
        return {"input": self._text}
