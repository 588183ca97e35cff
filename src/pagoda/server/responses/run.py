"""A response while it is written: a task that needs no reader, and a log of events for those
that come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import msgspec

from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.keys.account import asking
from pagoda.server.replies.silence import Silence
from pagoda.server.responses.builder import ResponseBuilder
from pagoda.server.responses.store import Stored


class EventLog:
    """Event N is the one with sequence_number N."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self._ended = False
        self._news = asyncio.Event()

    def add(self, events: list[bytes]) -> None:
        if events:
            self.events += events
            self._announce()

    def end(self) -> None:
        self._ended = True
        self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def read(self, start: int) -> AsyncIterator[list[bytes]]:
        """Events from number `start` to the last, those that are there at once together."""
        while True:
            news, ended = self._news, self._ended
            if start < len(self.events):
                there = self.events[start:]
                start = len(self.events)
                yield there
            elif ended:
                return
            else:
                await news.wait()


class ResponseRun:
    """Started where it is made; raises what keeps the engine from taking the request."""

    def __init__(self, builder: ResponseBuilder, items: list[dict[str, object]], interval: float):
        """`interval`: as of EventStream."""
        self._interval = interval
        self.builder = builder
        self.items = items
        self.log = EventLog()
        self.error: ApiError | None = None
        self._inside = ExitStack()
        self._inside.enter_context(builder.stream.generation.started())
        self.log.add(builder.begin())
        self._task = asyncio.create_task(self._write())
        self._over = asyncio.Event()
        # Also called for a task that was cancelled before its first step.
        self._task.add_done_callback(self._end)
        account = asking()
        if account is not None and builder.response.background:
            # It runs on when its request was answered.
            account.enter()
            self._task.add_done_callback(lambda _: account.leave())

    @property
    def id(self) -> str:
        return self.builder.response.id

    @property
    def running(self) -> bool:
        return not self._over.is_set()

    async def over(self) -> None:
        """Returns when there is nothing more to come."""
        await self._over.wait()

    async def chunks(self, start: int) -> AsyncIterator[bytes]:
        """Its events from number `start` on, for a stream."""
        async for events in self.log.read(start):
            yield b"".join(events)

    def cancel(self) -> None:
        self._task.cancel()

    def stored(self) -> Stored:
        """What it is by now."""
        response = self.builder.snapshot()
        return Stored(
            id=self.id,
            previous_id=response.previous_response_id,
            running=self.running,
            response=msgspec.json.encode(response),
            input=msgspec.json.encode(self.items),
            events=b"".join(self.log.events),
        )

    async def _write(self) -> None:
        stream = self.builder.stream
        with Silence(self._interval, stream.generation.wake) as silence:
            while stream.generation.running:
                await stream.generation.arrival()
                events = [told for event in stream.take() for told in self.builder.add(event)]
                if not events and silence.is_over:
                    events = self.builder.waiting()
                if events:
                    silence.told()
                    self.log.add(events)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._inside.close()
        try:
            if task.cancelled():
                self.log.add(self.builder.cancel())
            elif (error := task.exception()) is not None:
                self.error = to_api_error(error)
                self.log.add(self.builder.fail(self.error))
            else:
                self.log.add(self.builder.end())
        finally:
            self._over.set()
            self.log.end()
