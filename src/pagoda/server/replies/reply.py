"""What the replies of all dialects are."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from pagoda.server.errors import ApiError
from pagoda.server.replies.events import ReplyEvent, ReplyStream

DONE = b"data: [DONE]\n\n"
Answer = msgspec.Struct | dict[str, Any] | Sequence[msgspec.Struct | dict[str, Any]] | str
"""What becomes the JSON of a whole reply, or its text."""


class Reply(ABC):
    """A reply in the words of a dialect: told event by event, or whole, which is what its events
    add up to."""

    media_type = "text/event-stream"
    last = DONE
    """Ends every stream, whatever happened."""

    def __init__(self, stream: ReplyStream):
        self.stream = stream
        self.generation = stream.generation
        self.sums = [ReplyEvent(i, starts=True) for i in range(self.generation.num_choices)]
        """The sum of each choice's events, where it is not streamed."""

    @abstractmethod
    def tell(self, event: ReplyEvent) -> bytes:
        """The events of the dialect; empty if there is nothing to tell yet."""

    @abstractmethod
    def waiting(self) -> bytes:
        """An event for clients that give up a stream in which they hear nothing."""

    def end(self) -> bytes:
        """What follows the last event."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """What follows where there is no last event."""
        return b"data: " + error.body() + b"\n\n"

    def add(self, event: ReplyEvent) -> None:
        self.sums[event.index].add(event)

    @abstractmethod
    def whole(self) -> Answer:
        """What the dialect answers once all events were added."""
