"""Where what the engine says about requests waits for its reader."""

import asyncio
from typing import Any

from pagoda.base.errors import EngineDeadError
from pagoda.core.messages import RequestDelta, is_progress


class Inbox:
    """What arrived for some requests, merged into one delta of each until the reader takes it.

    A reader that is slow makes deltas longer; nothing piles up.
    """

    def __init__(self) -> None:
        self.begun = False
        """Something of a reply was there for the reader."""
        self.runs = 0
        """How often the requests were sent to an engine."""
        self._loop = asyncio.get_running_loop()
        self._deltas: dict[str, RequestDelta] = {}
        self._death: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: RequestDelta) -> None:
        self.begun = self.begun or not is_progress(delta)
        earlier = self._deltas.get(delta.req_id)
        self._deltas[delta.req_id] = delta if earlier is None else _merged(earlier, delta)
        self.wake()

    def end(self, cause: str) -> None:
        """The engine ended: the reader is told after what came before."""
        self._death = cause
        self.wake()

    def arrival(self) -> "asyncio.Future[None]":
        """Done as soon as `take` has something to tell."""
        self._waiter = asyncio.Future(loop=self._loop)
        if self._deltas or self._death is not None:
            self._waiter.set_result(None)
        return self._waiter

    def take(self) -> list[RequestDelta]:
        """What arrived since the last look; EngineDeadError, one for each reader, at the end."""
        if not self._deltas and self._death is not None:
            raise EngineDeadError(self._death)
        taken = list(self._deltas.values())
        self._deltas.clear()
        return taken

    def wake(self) -> None:
        """Have who waits for an arrival look around."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _merged(older: RequestDelta, newer: RequestDelta) -> RequestDelta:
    """One delta that says what the two say."""
    return RequestDelta(
        req_id=older.req_id,
        token_ids=older.token_ids + newer.token_ids,
        logprobs=_joined(older.logprobs, newer.logprobs),
        prompt_logprobs=_joined(older.prompt_logprobs, newer.prompt_logprobs),
        prompt_progress=newer.prompt_progress or older.prompt_progress,
        num_cached_tokens=(
            newer.num_cached_tokens if older.num_cached_tokens is None else older.num_cached_tokens
        ),
        prefix_miss=newer.prefix_miss if older.num_cached_tokens is None else older.prefix_miss,
        cached_tiers=newer.cached_tiers if older.num_cached_tokens is None else older.cached_tiers,
        queue_seconds=newer.queue_seconds if older.queue_seconds is None else older.queue_seconds,
        embedding=newer.embedding,
        finish_reason=newer.finish_reason,
        stop_reason=newer.stop_reason,
        error=newer.error,
        bad_request=newer.bad_request,
        num_preemptions=newer.num_preemptions,
        num_draft_tokens=newer.num_draft_tokens or older.num_draft_tokens,
        num_accepted_tokens=newer.num_accepted_tokens or older.num_accepted_tokens,
        kv_transfer_params=newer.kv_transfer_params,
        engine=older.engine if newer.engine is None else newer.engine,
    )


def _joined(older: list[Any] | None, newer: list[Any] | None) -> list[Any] | None:
    if older is None or newer is None:
        return newer if older is None else older
    return older + newer
