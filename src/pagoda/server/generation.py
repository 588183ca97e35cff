"""Runs the choices of one HTTP request: prompts x n, each an engine request of its own."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Set
from contextlib import aclosing

from pagoda.base.errors import RequestError
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.deltas import merged
from pagoda.engine.directory import ServedModel, fan_out
from pagoda.engine.outputs import OutputDelta, OutputProcessor
from pagoda.server.errors import ApiError, unavailable
from pagoda.server.metrics import Metrics, RequestTimer
from pagoda.server.params import check_volume
from pagoda.server.protocol.common import GenerationBody

Part = tuple[int, OutputDelta]
"""Index of the choice, and what was added to it."""

# Clients choose response ids, so engine ids carry a number that never repeats.
_serial = itertools.count()


class Generation:
    """All choices of one request, in the order prompt 0's n choices, prompt 1's, ..."""

    def __init__(
        self,
        served: ServedModel,
        prompts: list[list[int]],
        sampling: SamplingParams,
        body: GenerationBody,
        response_id: str,
        metrics: Metrics,
        shown_ids: Set[int] = frozenset(),
    ):
        """Raises RequestError (too long, bad ids) before anything reaches the engine."""
        if served.client.state != "ready":
            raise unavailable(not_ready_message(served))
        check_volume(sampling, len(prompts) * sampling.n)
        self.prompts = prompts
        self.sampling = sampling
        self._shown_ids = shown_ids
        self._served = served
        self._requests: list[AddRequest] = []
        for prompt_ids in prompts:
            request = served.make_request(
                f"{response_id}-{next(_serial)}",
                prompt_ids,
                sampling,
                priority=body.priority,
                cache_salt=body.cache_salt,
            )
            if sampling.max_tokens is None:
                _apply_default_length(request.sampling, body, served)
            self._requests += fan_out(request, sampling.n)
        self._timers = [
            RequestTimer(metrics.of(served), request, sampling.n) for request in self._requests
        ]

    @property
    def num_choices(self) -> int:
        return len(self._requests)

    def prompt_ids(self, index: int) -> list[int]:
        """The prompt of a choice as the engine sees it (truncation applied)."""
        return self._requests[index].prompt_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt once: its choices share it."""
        return sum(len(self.prompt_ids(i)) for i in range(0, self.num_choices, self.sampling.n))

    async def run(self) -> AsyncGenerator[list[Part], None]:
        """Yield what arrived since the last look, at least one part each time.

        Raises RequestError or ApiError when a choice fails and EngineDeadError when the engine
        does. Closing the generator aborts what still runs.
        """
        processors = [
            OutputProcessor(
                self._served.tokenizer, self.sampling, self.prompt_ids(i), self._shown_ids
            )
            for i in range(self.num_choices)
        ]
        generate = self._served.client.generate
        inbox = _inbox([generate(request) for request in self._requests])
        try:
            running = set(range(self.num_choices))
            while running:
                batch = []
                for index, delta in await inbox.take():
                    if index not in running:
                        continue
                    output = self._process(index, processors[index], delta)
                    batch.append((index, output))
                    if output.finish_reason is not None:
                        running.discard(index)
                        inbox.drop(index)
                if batch:
                    yield batch
        finally:
            await inbox.close()
            for timer in self._timers:
                timer.close()

    def _process(self, index: int, processor: OutputProcessor, delta: RequestDelta) -> OutputDelta:
        output = processor.process(delta)
        self._timers[index].observe(delta, output.finish_reason)
        if output.bad_request:
            raise RequestError(output.error or "The request cannot be served.")
        if output.error is not None or output.finish_reason == "error":
            raise ApiError(500, f"The request failed: {output.error or 'unknown cause'}")
        return output


Deltas = AsyncGenerator[RequestDelta, None]


def _inbox(sources: list[Deltas]) -> "_Single | _Merged":
    return _Single(sources[0]) if len(sources) == 1 else _Merged(sources)


class _Single:
    """The deltas of the one choice that most requests have, without a task beside the reader's."""

    def __init__(self, source: Deltas):
        self._source = source

    async def take(self) -> list[tuple[int, RequestDelta]]:
        return [(0, await anext(self._source))]

    def drop(self, index: int) -> None:
        """Closing is near."""

    async def close(self) -> None:
        await self._source.aclose()


class _Merged:
    """Deltas of a few engine requests, merged per request until they are taken.

    A reader that is slow makes entries longer, never more of them.
    """

    def __init__(self, sources: list[Deltas]) -> None:
        self._pending: dict[int, RequestDelta] = {}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._tasks = [self._start(index, source) for index, source in enumerate(sources)]

    def drop(self, index: int) -> None:
        """Abort a choice that is complete, unless the engine ended it."""
        self._tasks[index].cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take(self) -> list[tuple[int, RequestDelta]]:
        """What arrived since the last call, after waiting for it.

        Raises the error that ended a request, once everything before it is taken.
        """
        await self._changed.wait()
        self._changed.clear()
        taken = list(self._pending.items())
        self._pending.clear()
        if self._error is not None:
            if not taken:
                raise self._error
            self._changed.set()
        return taken

    def _start(self, index: int, deltas: Deltas) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._fill(index, deltas))
        task.add_done_callback(self._ended)
        return task

    async def _fill(self, index: int, deltas: Deltas) -> None:
        async with aclosing(deltas):
            async for delta in deltas:
                earlier = self._pending.get(index)
                self._pending[index] = delta if earlier is None else merged(earlier, delta)
                self._changed.set()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._error = self._error or task.exception()
            self._changed.set()


def _apply_default_length(
    sampling: SamplingParams, body: GenerationBody, served: ServedModel
) -> None:
    """A default never asks for more than the context has left: nobody chose it."""
    default = served.defaults.get("max_tokens", body.DEFAULT_MAX_TOKENS)
    if default is not None and sampling.max_tokens is not None:
        sampling.max_tokens = min(default, sampling.max_tokens)


def not_ready_message(served: ServedModel) -> str:
    client = served.client
    if client.state == "starting":
        after = f" again, after its engine died: {client.cause}" if client.cause else "."
        return f"The model {served.names[0]} is loading{after}"
    return f"The engine is not running: {client.cause or client.state}"
