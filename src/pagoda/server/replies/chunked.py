"""Replies in chunks of choices, as OpenAI streams them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pagoda.server.protocol.common import StreamOptions
from pagoda.server.protocol.replies import Usage
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.sse import TextEvent, data_event


class ChunkedReply(Reply):
    def __init__(
        self,
        stream: ReplyStream,
        options: StreamOptions | None,
        *,
        tells_tokens: bool,
        tells_more: bool = False,
        as_ids: bool = False,
    ):
        """With `tells_tokens` there is a chunk for a token even where it adds no text, and with
        `tells_more` a chunk of text says more. `as_ids`: as LogprobFormatter's."""
        super().__init__(stream)
        options = options or StreamOptions()
        self._includes_usage = options.include_usage
        self._counts = options.continuous_usage_stats
        self._tells_tokens = tells_tokens or self._counts
        self._plain = not (self._tells_tokens or tells_more)
        self._texts: dict[int, TextEvent] = {}
        self._formatter = LogprobFormatter(self.generation.served.tokenizer, as_ids)

    def tell(self, event: ReplyEvent) -> bytes:
        # The short way of nearly all events: with nothing to tell but a piece of text.
        if self._plain and not event.starts and event.finish_reason is None:
            if not event.deltas:
                return b""
            if len(event.deltas) == 1 and event.deltas[0].kind == "text":
                return self._text(event.index).of(event.deltas[0].text)
        return self._told(event)

    def end(self) -> bytes:
        if not self._includes_usage:
            return b""
        return data_event(self._chunk([], self._final_usage()))

    def _text(self, index: int) -> TextEvent:
        found = self._texts.get(index)
        if found is None:
            found = TextEvent(lambda text: self._chunk([self._text_choice(index, text)]))
            self._texts[index] = found
        return found

    def _usage(self) -> Usage | UnsetType:
        """What a chunk says of it."""
        return self.stream.usage() if self._counts else UNSET

    @abstractmethod
    def _told(self, event: ReplyEvent) -> bytes:
        """Chunks of an event, whatever it says."""

    @abstractmethod
    def _chunk(self, choices: Sequence[Any], usage: Usage | UnsetType = UNSET) -> msgspec.Struct:
        """A chunk, which has nothing else to say."""

    @abstractmethod
    def _text_choice(self, index: int, text: str) -> msgspec.Struct:
        """A choice of a chunk that only adds to the text."""

    @abstractmethod
    def _final_usage(self) -> Usage: ...
