"""What happens in a run, told to whoever listens and kept for who comes later."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

Event = dict[str, Any]
# So many past events a newcomer still gets; the journal has all.
_KEPT = 2000


class Events:
    """Numbered events: a listener that falls behind gets what it missed, as far as it is kept."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._first = 0
        self._news = asyncio.Event()

    def emit(self, event: str, **fields: Any) -> None:
        """Add an event; its `number` counts up from 0."""
        self._events.append({"event": event, "number": self.next_number, **fields})
        if len(self._events) > _KEPT:
            gone = len(self._events) - _KEPT
            del self._events[:gone]
            self._first += gone
        self._news.set()
        self._news = asyncio.Event()

    @property
    def next_number(self) -> int:
        """Number of the event that comes next."""
        return self._first + len(self._events)

    def clear(self) -> None:
        """Forget the past, which belongs to another task; numbers go on."""
        self._first += len(self._events)
        self._events.clear()

    def since(self, number: int) -> list[Event]:
        """Events from `number` on that are kept."""
        return self._events[max(0, number - self._first) :]

    async def follow(self, number: int = 0) -> AsyncIterator[Event]:
        """Events from `number` on, and then each as it comes; for ever."""
        while True:
            news = self._news
            for event in self.since(number):
                number = event["number"] + 1
                yield event
            await news.wait()
