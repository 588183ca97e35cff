"""Several engines of one model, presented as one.

A router chooses the engine of each request. If an engine dies, its requests continue on another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from pagoda.base.errors import EngineAsleepError, EngineDeadError, RequestError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest, EngineProgress, EngineReady, LoadedAdapter
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.asking import LOAD_SECONDS, NO_MEDIA, Asking
from pagoda.engine.processes.client import EngineClient, Progress, State
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.processes.kept import not_ready
from pagoda.engine.replicas.dispatch import Dispatch
from pagoda.engine.replicas.replica import Replica
from pagoda.text.media.base import Values

_STOPPED = "The engine was stopped."


class Replicas(Asking):
    """Has what callers use of an EngineClient. It serves as long as one of its engines does."""

    def __init__(self, config: EngineConfig, replicas: Sequence[Replica]):
        self.config = config
        self.adapters = KnownAdapters(config.adapters)
        self.asleep = False
        """It takes no requests until `wake_up`."""
        self.ready: EngineReady | None = None
        """What holds for all of them, once they were ready."""
        self._replicas = list(replicas)
        self._dispatch = Dispatch(config, self._replicas)
        self._stopping = False
        for index, replica in enumerate(replicas):
            replica.adapters = self.adapters
            replica.lost = partial(self._on_loss, index)
            replica.serves = self._on_ready

    @property
    def engines(self) -> list[EngineClient]:
        """In their order, which is that of the metrics' label."""
        return [*self._replicas]

    @property
    def state(self) -> State:
        states = {replica.state for replica in self._replicas}
        order: tuple[State, ...] = ("ready", "starting", "dead")
        return next((state for state in order if state in states), "stopped")

    @property
    def cause(self) -> str | None:
        """Why none is ready, once all have died; None while all is well."""
        if self.state == "ready":
            return None
        return next((each.cause for each in self._replicas if each.cause is not None), None)

    @property
    def phase(self) -> str:
        """That of the first that is not ready."""
        return self._first_down.phase

    @property
    def down_since(self) -> float:
        """time.monotonic() of the launch, or the death, of the first that is not ready."""
        return self._first_down.down_since

    @property
    def stalled(self) -> str | None:
        """What stands still, where no engine makes progress."""
        stalls = [each.stalled for each in self._serving()]
        return stalls[0] if stalls and None not in stalls else None

    @property
    def out_of_memory(self) -> bool:
        return any(each.out_of_memory for each in self._replicas)

    @property
    def died_at(self) -> float | None:
        """time.monotonic() when the last of them was given up."""
        times = [each.died_at for each in self._replicas if each.died_at is not None]
        return max(times) if times and self.state == "dead" else None

    @property
    def num_running(self) -> int:
        """Requests inside, or waiting for an engine."""
        return len(self._dispatch)

    async def wait_ready(
        self, timeout: float | None = None, progress: Progress | None = None
    ) -> EngineReady:
        """Wait until all serve; `progress` hears of the first. Raises as an EngineClient does, what
        the first to fail raises."""
        rest = len(self._replicas) - 1
        heard: list[Progress | None] = [progress, *([_ignore] * rest)]
        waiting = [
            asyncio.ensure_future(each.wait_ready(timeout, hear))
            for each, hear in zip(self._replicas, heard, strict=True)
        ]
        try:
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert self.ready is not None  # all said so
        return self.ready

    async def wait_end(self) -> None:
        """Until all were stopped or given up."""
        await asyncio.gather(*(each.wait_end() for each in self._replicas))

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        """End the processes: running requests get `drain_seconds`; nothing is left behind."""
        self._stopping = True
        self._dispatch.end_waiting(_STOPPED)
        await asyncio.gather(*(each.shutdown(drain_seconds) for each in self._replicas))

    def kill(self) -> None:
        """End the processes at once; works without an event loop, and after their end."""
        self._stopping = True
        for replica in self._replicas:
            replica.kill()

    def submit(
        self, requests: Sequence[AddRequest], media: Mapping[str, Values] = NO_MEDIA
    ) -> Inbox:
        self._require_ready()
        if self.asleep:
            raise EngineAsleepError
        return self._dispatch.submit(requests, media)

    def drop(self, req_ids: Iterable[str]) -> None:
        self._dispatch.drop(req_ids)

    async def call(self, method: str, *args: Any, timeout: float = 10.0) -> Any:
        """As `Asking.call`, of all engines that serve. The first answer that is false, else the
        first; who dies on the way has none."""
        answers, error = await self._ask(method, *args, timeout=timeout)
        if error is not None:
            raise error
        return next((answer for answer in answers if not answer), answers[0])

    async def _ask(
        self, method: str, *args: Any, timeout: float
    ) -> tuple[list[Any], RequestError | EngineDeadError | None]:
        """The answers of all engines that serve or begin to meanwhile, and what went wrong at one
        of them."""
        self._require_ready()
        asked: set[tuple[Replica, int]] = set()
        answers: list[Any] = []
        error: RequestError | EngineDeadError | None = None
        death: EngineDeadError | None = None
        while asking := [each for each in self._serving() if _process(each) not in asked]:
            asked.update(map(_process, asking))
            calls = (each.call(method, *args, timeout=timeout) for each in asking)
            results = await asyncio.gather(*calls, return_exceptions=True)
            lives = [each.state == "ready" and _process(each) in asked for each in asking]
            for result, alive in zip(results, lives, strict=True):
                if isinstance(result, EngineDeadError) and not alive:
                    death = result
                elif isinstance(result, RequestError | EngineDeadError):
                    error = error or result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    answers.append(result)
        return answers, error or (None if answers else death)

    async def _load(self, path: str) -> Any:
        """As `Asking._load`; where one engine cannot load it, none keeps it."""
        answers, error = await self._ask("load_adapter", path, timeout=LOAD_SECONDS)
        if error is None:
            return answers[0]
        for told in answers[:1]:
            with suppress(RequestError):  # from whom has not got it
                await self._forget_adapter(msgspec.convert(told, LoadedAdapter).identity)
        raise error

    async def sleep(self, *, wait: bool = False) -> None:
        """As `EngineClient.sleep`, of all that were not given up; where one fails, all are
        awake."""
        self._require_ready()
        self.asleep = True
        try:
            await self._of_all(lambda each: each.sleep(wait=wait))
        except BaseException:
            self.asleep = False
            await self._of_all(lambda each: each.wake_up(), asleep=True)
            raise

    async def wake_up(self) -> None:
        """Take requests again; raises as `call`."""
        await self._of_all(lambda each: each.wake_up())
        self.asleep = False

    async def _of_all(
        self, action: Callable[[Replica], Awaitable[None]], *, asleep: bool = False
    ) -> None:
        """Have all do it that were not given up; raises what the first that fails raises."""
        chosen = [
            each
            for each in self._replicas
            if each.state in ("ready", "starting") and (each.asleep or not asleep)
        ]
        results = await asyncio.gather(*map(action, chosen), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @property
    def _first_down(self) -> Replica:
        starting = (each for each in self._replicas if each.state == "starting")
        return next(starting, self._replicas[0])

    def _serving(self) -> list[Replica]:
        return [each for each in self._replicas if each.state == "ready"]

    def _require_ready(self) -> None:
        if self.state != "ready" or self._stopping:
            raise not_ready(self.state, self._stopping, self.cause, self.phase)

    def _on_ready(self) -> None:
        said = [each.ready for each in self._replicas if each.ready is not None]
        self.ready = joined(said)
        self._dispatch.serve(self.ready.block_size)

    def _on_loss(self, index: int, cause: str) -> None:
        if self._stopping:
            return
        self._dispatch.lose(index, cause)
        if self.state not in ("ready", "starting"):
            self._dispatch.end_waiting(cause)


def joined(said: Sequence[EngineReady]) -> EngineReady:
    """What all engines can do: the shortest context of any, and the room of all."""
    return msgspec.structs.replace(
        said[0],
        max_model_len=min(one.max_model_len for one in said),
        num_blocks=sum(one.num_blocks for one in said),
        kv_tokens=sum(one.kv_tokens for one in said),
        max_num_seqs=sum(one.max_num_seqs for one in said),
    )


def _process(replica: Replica) -> tuple[Replica, int]:
    """What names the one of its processes that it has now."""
    return replica, replica.restarts


def _ignore(step: EngineProgress) -> None: ...
