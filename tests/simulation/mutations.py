"""Faults put into the code on purpose, one at a time: the simulation must find each."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.pools import BlockPools
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    ClientMessage,
    RequestDelta,
    UtilityResult,
)
from pagoda.engine.core import EngineCore
from pagoda.engine.media import MediaFiles
from pagoda.engine.processes import inbox as inbox_module
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.queue_limit import QueueLimit
from pagoda.engine.processes.running import RunningRequests
from pagoda.engine.processes.supervision import Supervision
from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model import ServedModel
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.metrics import RequestTimer

Mutation = Callable[[], AbstractContextManager[Any]]


def lost_abort() -> AbstractContextManager[Any]:
    handle = EngineCore.handle

    def mutated(self: EngineCore, message: ClientMessage) -> UtilityResult | None:
        return None if isinstance(message, AbortRequests) else handle(self, message)

    return mock.patch.object(EngineCore, "handle", mutated)


def block_freed_twice() -> AbstractContextManager[Any]:
    release = BlockPools.release

    def mutated(self: BlockPools, group: int, blocks: Sequence[int]) -> None:
        release(self, group, blocks)
        release(self, group, [one for one in blocks if self.pools[group].ref_counts[one]][:1])

    return mock.patch.object(BlockPools, "release", mutated)


def block_never_freed() -> AbstractContextManager[Any]:
    release = BlockPools.release

    def mutated(self: BlockPools, group: int, blocks: Sequence[int]) -> None:
        release(self, group, blocks[:-1] if len(blocks) > 8 else blocks)

    return mock.patch.object(BlockPools, "release", mutated)


def inbox_not_ended_on_death() -> AbstractContextManager[Any]:
    return mock.patch.object(Inbox, "end", lambda self, cause: None)


def tokens_merged_in_wrong_order() -> AbstractContextManager[Any]:
    merged = inbox_module._merged

    def mutated(older: RequestDelta, newer: RequestDelta) -> RequestDelta:
        whole = merged(older, newer)
        whole.token_ids = newer.token_ids + older.token_ids
        return whole

    return mock.patch.object(inbox_module, "_merged", mutated)


def picture_not_released() -> AbstractContextManager[Any]:
    return mock.patch.object(MediaFiles, "release", lambda self, req_id: None)


def picture_released_with_its_first_request() -> AbstractContextManager[Any]:
    hold = MediaFiles.hold

    def mutated(self: MediaFiles, request: Any, *args: Any) -> None:
        hold(self, request, *args)
        for path in self._files.get(request.req_id, ()):
            self._users[path] = 1

    return mock.patch.object(MediaFiles, "hold", mutated)


def place_in_the_queue_kept() -> AbstractContextManager[Any]:
    return mock.patch.object(QueueLimit, "forget", lambda self, req_id: None)


def lease_leaked() -> AbstractContextManager[Any]:
    @contextmanager
    def mutated(self: ModelEntry) -> Iterator[None]:
        self.users += 1
        yield
        self.users -= 1  # not where the request fails or its client leaves

    return mock.patch.object(ModelEntry, "used", mutated)


def waiters_cancelled_with_their_load() -> AbstractContextManager[Any]:
    async def mutated(self: Fleet, entry: ModelEntry) -> ServedModel:
        return entry.served or await asyncio.shield(self.begin(entry))

    return mock.patch.object(Fleet, "ready", mutated)


def prefixes_kept_while_asleep() -> AbstractContextManager[Any]:
    return mock.patch.object(KVCacheManager, "reset_prefix_cache", lambda self: True)


def left_request_not_counted() -> AbstractContextManager[Any]:
    return mock.patch.object(RequestTimer, "close", lambda self: None)


def stall_never_noticed() -> AbstractContextManager[Any]:
    return mock.patch.object(Supervision, "look", lambda self, now: None)


def second_death_is_final() -> AbstractContextManager[Any]:
    died = Supervision.died

    def mutated(self: Supervision, now: float) -> float | None:
        died(self, now)
        return 0.0 if self.failures == 1 else None

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Supervision, "died", mutated))
    stack.enter_context(mock.patch.object(ModelEntry, "is_over", False))
    return stack


def request_forgotten_by_a_restart() -> AbstractContextManager[Any]:
    to_resend = RunningRequests.to_resend

    def mutated(self: RunningRequests) -> Iterator[AddRequest]:
        yield from list(to_resend(self))[1:]

    return mock.patch.object(RunningRequests, "to_resend", mutated)


MUTATIONS: tuple[Mutation, ...] = (
    stall_never_noticed,
    second_death_is_final,
    request_forgotten_by_a_restart,
    lost_abort,
    block_freed_twice,
    block_never_freed,
    inbox_not_ended_on_death,
    tokens_merged_in_wrong_order,
    picture_not_released,
    picture_released_with_its_first_request,
    place_in_the_queue_kept,
    lease_leaked,
    waiters_cancelled_with_their_load,
    prefixes_kept_while_asleep,
    left_request_not_counted,
)
