"""A pool of processes that do jobs aside, each within its bounds, killed when it exceeds them."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pagoda.base import env
from pagoda.base.errors import EngineDeadError, RequestError
from pagoda.base.log import get_logger
from pagoda.config.engine import ModelConfig
from pagoda.engine.aside import wire
from pagoda.engine.aside.direct import Aside
from pagoda.engine.aside.jobs import (
    BOUNDS,
    AnyJob,
    Bounds,
    Job,
    Result,
    bounds_of,
    crashed,
    too_large,
    too_slow,
)
from pagoda.engine.aside.link import Link, LinkClosedError
from pagoda.engine.aside.zygote import Forked

log = get_logger(__name__)

_LEAST, _MOST = 2, 4
# A model's tokenizer is loaded in a second or two.
_START_SECONDS = 120.0
_SLICE = 1 << 16
# By then it is known whether a worker died alone. It ends with its zygote, and which of the two
# ends is seen first is a matter of luck.
_SETTLED_SECONDS = 0.2


@dataclass(eq=False)
class _Worker:
    link: Link
    pidfd: int
    slow: bool = False
    """It does a slow job."""


@dataclass(eq=False)
class _Ticket:
    slow: bool
    turn: "asyncio.Future[_Worker]"


class _Zygote:
    """The process that forks workers."""

    def __init__(self, model: ModelConfig, module: str):
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    # A fork copies one thread only.
                    env=env.child_environment(
                        OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1",
                        TOKENIZERS_PARALLELISM="false",
                    ),
                    start_new_session=True,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._link = Link(ours)
        self._model = model

    @property
    def alive(self) -> bool:
        return not self._link.closed

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self) -> None:
        async with asyncio.timeout(_START_SECONDS):
            await self._link.ask(wire.frame(self._model), Forked)

    async def fork(self) -> _Worker:
        """Raises OSError, LinkClosedError and TimeoutError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                async with asyncio.timeout(_START_SECONDS):
                    forked = await self._link.ask(b"f", Forked, give=theirs)
            if forked.problem is not None:
                raise OSError(forked.problem)
            return _Worker(Link(ours), self._link.take_file())
        except BaseException:
            ours.close()
            raise

    def end(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()


class Workers(Aside):
    """The workers of one model. They belong to one event loop; `begin` starts them, so that the
    first job finds them warm."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        size: int | None = None,
        bounds: Mapping[type[Job], Bounds] = BOUNDS,
        module: str = "pagoda.engine.aside.zygote",
    ):
        """`model` is local; `module` is what runs as the zygote."""
        self._module = module
        self._model = model
        self._size = size or max(_LEAST, min(_MOST, len(os.sched_getaffinity(0))))
        self._bounds = bounds
        self._zygote: _Zygote | None = None
        self._all: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._waiting: deque[_Ticket] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self) -> "Workers":
        """Start what is missing, in the background."""
        under_way = self._filling is not None and not self._filling.done()
        if not (self._closed or under_way) and len(self._all) < self._size:
            self._filling = asyncio.get_running_loop().create_task(self._fill())
        return self

    @property
    def pids(self) -> list[int]:
        """Process ids of the zygote and its workers, as far as they are known."""
        zygote = [self._zygote.pid] if self._zygote is not None else []
        return zygote + [pid for worker in self._all if (pid := process_id(worker)) is not None]

    async def run(self, job: AnyJob, file: bytes = b"") -> Result:
        bounds = bounds_of(job, self._bounds)
        try:
            question = wire.frame(wire.Order(job, bounds), file)
        except UnicodeEncodeError as error:
            raise RequestError(
                "The text is not valid Unicode: it holds a lone surrogate. Send whole characters."
            ) from error
        worker = await self._turn(bounds.slow)
        healthy = False
        try:
            async with asyncio.timeout(bounds.seconds):
                answer = await worker.link.ask(question, wire.Answer)
            healthy = not isinstance(answer, wire.Exhausted | wire.Failed)
            return await _result(job, bounds, answer, worker.link)
        except TimeoutError:
            raise too_slow(job, bounds.seconds) from None
        except LinkClosedError:
            await asyncio.sleep(_SETTLED_SECONDS)
            if self._closed or self._zygote is None or not self._zygote.alive:
                raise _unavailable("it ended") from None
            raise crashed(job) from None
        finally:
            self._give_back(worker, healthy)

    async def close(self) -> None:
        """End all of them; jobs under way and those that wait raise EngineDeadError."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        for worker in list(self._all):
            self._end(worker)
        if self._zygote is not None:
            self._zygote.end()
        self._refuse("the server stops")

    async def _turn(self, slow: bool) -> _Worker:
        """A worker of one's own, in the order of arrival among those who may have one."""
        if self._closed:
            raise _unavailable("the server stops")
        self._watch_zygote()
        ticket = _Ticket(slow, asyncio.get_running_loop().create_future())
        self._waiting.append(ticket)
        self._hand_out()
        self.begin()
        try:
            return await ticket.turn
        except asyncio.CancelledError:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            elif not ticket.turn.cancelled() and ticket.turn.exception() is None:
                self._give_back(ticket.turn.result(), True)
            raise

    def _hand_out(self) -> None:
        for ticket in list(self._waiting):
            busy = sum(worker.slow for worker in self._all)
            if ticket.slow and busy >= self._size - 1:
                continue
            worker = self._next_idle()
            if worker is None:
                return
            self._waiting.remove(ticket)
            if ticket.turn.done():  # cancelled
                self._idle.append(worker)
                continue
            worker.slow = ticket.slow
            ticket.turn.set_result(worker)

    def _next_idle(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if not worker.link.closed:
                return worker
            self._end(worker)
        return None

    def _give_back(self, worker: _Worker, healthy: bool) -> None:
        worker.slow = False
        if healthy and not worker.link.closed and not self._closed:
            self._idle.append(worker)
        else:
            self._end(worker)
        self._hand_out()
        if self._waiting or not healthy:
            self.begin()

    def _end(self, worker: _Worker) -> None:
        if worker not in self._all:
            return
        self._all.remove(worker)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        os.close(worker.pidfd)
        worker.link.close()

    def _watch_zygote(self) -> None:
        """Its workers have ended with it."""
        if self._zygote is not None and not self._zygote.alive:
            for worker in self._idle:
                self._end(worker)
            self._idle.clear()

    async def _fill(self) -> None:
        try:
            while len(self._all) < self._size:
                worker = await (await self._live_zygote()).fork()
                self._all.add(worker)
                self._idle.append(worker)
                self._hand_out()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            log.warning("A worker process for templates and texts could not start: %r.", error)
            if not self._all:
                self._refuse(
                    f"it could not start ({error})" if str(error) else "it could not start"
                )

    async def _live_zygote(self) -> _Zygote:
        if self._zygote is not None and self._zygote.alive:
            return self._zygote
        if self._zygote is not None:
            self._zygote.end()
        self._zygote = _Zygote(self._model, self._module)
        await self._zygote.load()
        return self._zygote

    def _refuse(self, why: str) -> None:
        for ticket in self._waiting:
            if not ticket.turn.done():
                ticket.turn.set_exception(_unavailable(why))
        self._waiting.clear()


def start_workers(model: ModelConfig) -> Workers | None:
    """Those of a local model, which begin to load. None where the system has no processes that can
    be held to bounds: it is Linux that has."""
    if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
        log.warning("Templates, texts and media are worked on without bounds on this system.")
        return None
    return Workers(model).begin()


async def _result(job: AnyJob, bounds: Bounds, answer: wire.Answer, link: Link) -> Result:
    match answer:
        case wire.Prompted(rendered):
            return rendered
        case wire.Held(constraint):
            return constraint
        case wire.Few(ids):
            return ids
        case wire.Extracted(pdf):
            return pdf
        case wire.Many(count):
            return await _ids(link.take_file(), count)
        case wire.Shown():
            return wire.medium(answer, link.take_file())
        case wire.Refused(message, param):
            raise RequestError(message, param)
        case wire.Exhausted():
            raise too_large(job, bounds.memory)
        case wire.Failed(reason):
            raise RuntimeError(f"A worker failed:\n{reason}")


async def _ids(file: int, count: int) -> list[int]:
    """In slices, so that others have their turn in between."""
    array = np.frombuffer(wire.mapped(file, 4 * count), np.int32)
    ids: list[int] = []
    for start in range(0, count, _SLICE):
        ids += array[start : start + _SLICE].tolist()
        await asyncio.sleep(0)
    return ids


def _unavailable(why: str) -> EngineDeadError:
    return EngineDeadError(
        f"The engine's worker process for templates and texts is not there: {why}. Try again."
    )


def process_id(worker: _Worker) -> int | None:
    """None when its process has ended."""
    with open(f"/proc/self/fdinfo/{worker.pidfd}") as file:
        found = [int(line.split()[1]) for line in file if line.startswith("Pid:")]
    return found[0] if found and found[0] > 0 else None
