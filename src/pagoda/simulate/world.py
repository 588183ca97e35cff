"""Replicas behind a router, and the requests that arrive, in simulated time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import chain, count, repeat
from math import fsum, inf
from typing import NamedTuple

from pagoda.core.messages import AddRequest, EngineStats
from pagoda.core.routing import Router, make_router
from pagoda.core.sampling import SamplingParams
from pagoda.simulate.records import Records
from pagoda.simulate.replica import Machine, Replica
from pagoda.simulate.traces import Arrival, Trace

_PROGRESS_PERIOD = 64


@dataclass(frozen=True)
class Fleet:
    machine: Machine
    replicas: int = 1
    router: str = "round-robin"
    """One of `ROUTERS`."""


@dataclass(frozen=True)
class Outcome:
    fleet: Fleet
    records: Records
    num_requests: int
    prefix_hits: int
    """Prompt tokens that were found in the cache,"""
    prefix_queries: int
    """of so many."""
    preemptions: int
    steps: int
    busy: float
    """Share of the time in which a replica computed, on average."""
    stopped: bool
    """It was given up before all requests came."""


class Part(NamedTuple):
    """What came of some of a fleet's replicas."""

    records: Records
    stats: list[EngineStats]
    """What each replica's scheduler counted,"""
    busy: list[float]
    """and the seconds in which it computed."""
    stopped: bool = False


Progress = Callable[[int], object]
"""Told now and then how many requests are done."""


def simulate(
    trace: Trace,
    fleet: Fleet,
    *,
    leaps: bool = True,
    is_hopeless: Callable[[Records], bool] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Have the fleet serve a trace. `leaps` False takes steps one by one, with the same outcome.
    `is_hopeless` ends it early; it is asked after each request."""
    part = simulate_part(trace, fleet, leaps=leaps, is_hopeless=is_hopeless, progress=progress)
    return outcome(trace, fleet, [part])


def simulate_part(
    trace: Trace,
    fleet: Fleet,
    *,
    leaps: bool = True,
    is_hopeless: Callable[[Records], bool] | None = None,
    progress: Progress | None = None,
) -> Part:
    """The same, before it is summed up."""
    world = _World(trace, fleet, leaps, progress)
    stopped = world.run(is_hopeless)
    return Part(
        world.records,
        [replica.scheduler.stats() for replica in world.replicas],
        [replica.busy for replica in world.replicas],
        stopped,
    )


def outcome(trace: Trace, fleet: Fleet, parts: Sequence[Part]) -> Outcome:
    """Sum up a fleet whose replicas these parts are."""
    records = Records()
    for part in parts:
        records.add(part.records)
    stats = [one for part in parts for one in part.stats]
    span = records.duration * fleet.replicas
    return Outcome(
        fleet,
        records,
        trace.num_requests,
        prefix_hits=sum(one.prefix_hits for one in stats),
        prefix_queries=sum(one.prefix_queries for one in stats),
        preemptions=sum(one.num_preemptions for one in stats),
        steps=sum(one.num_steps for one in stats),
        busy=fsum(chain.from_iterable(part.busy for part in parts)) / span if span else 0.0,
        stopped=any(part.stopped for part in parts),
    )


class _World:
    """Who comes at a time comes before what is due then."""

    def __init__(self, trace: Trace, fleet: Fleet, leaps: bool, progress: Progress | None = None):
        self.records = Records()
        self.replicas = [
            Replica(fleet.machine, self.records, leaps=leaps) for _ in range(fleet.replicas)
        ]
        block_size = fleet.machine.groups[0].block_size
        self._sharing, self._is_shared = fleet.machine.sharing, fleet.machine.engines > 1
        self._router: Router = make_router(fleet.router, block_size)
        self._due: list[tuple[float, int]] = []
        """When each replica that is not idle is due; times that are no longer true among them."""
        self._coming = iter(trace)
        self._next = next(self._coming, None)
        self._under_way: list[tuple[float, int, Arrival]] = []
        """Requests of which no engine knows yet, and when one will."""
        self._numbers = count()
        self._num_busy = 0
        self._progress = progress

    def run(self, is_hopeless: Callable[[Records], bool] | None = None) -> bool:
        """Until nothing is left to be done; whether it was ended early."""
        if self._next is not None:
            self.records.began = self._next.time
        while True:
            coming = inf if self._next is None else self._next.time
            known = self._under_way[0][0] if self._under_way else inf
            due = self._due[0][0] if self._due else inf
            if due < min(coming, known):
                time, place = heappop(self._due)
                if self.replicas[place].wakes_at == time:
                    self.replicas[place].wake(self._ended)
                    self._will_wake(place)
                    self._share(time)
            elif coming <= known:
                if self._next is None:
                    return False
                arrival, self._next = self._next, next(self._coming, None)
                self._send(arrival)
            else:
                now, _, arrival = heappop(self._under_way)
                self._admit(now, arrival)
            if is_hopeless is not None and is_hopeless(self.records):
                return True

    def _send(self, arrival: Arrival) -> None:
        """As many compute as now, be it that the request follows a reply later."""
        known = arrival.time + self._sharing.delay(self._num_busy)
        heappush(self._under_way, (known, next(self._numbers), arrival))

    def _admit(self, now: float, arrival: Arrival) -> None:
        message = _message(arrival, next(self._numbers))
        if len(self.replicas) == 1:
            place = 0
        else:
            loads = [replica.load for replica in self.replicas]
            place = self._router.choose(message, loads)
        replica = self.replicas[place]
        before = replica.wakes_at
        replica.add(now, arrival, message)
        if replica.wakes_at != before:
            self._will_wake(place)
        self._share(now)

    def _share(self, now: float) -> None:
        """Give replicas on one machine the pace that so many have who compute."""
        if not self._is_shared:
            return
        busy = sum(replica.wakes_at is not None for replica in self.replicas)
        if busy == self._num_busy:
            return
        self._num_busy, pace = busy, self._sharing.pace(busy)
        for place, replica in enumerate(self.replicas):
            before = replica.wakes_at
            replica.set_pace(now, pace)
            if replica.wakes_at != before:
                self._will_wake(place)

    def _ended(self, arrival: Arrival, now: float) -> None:
        done = self.records.completed
        if self._progress is not None and not done % _PROGRESS_PERIOD:
            self._progress(done)
        if arrival.then is not None:
            self._send(arrival.then(now))

    def _will_wake(self, place: int) -> None:
        time = self.replicas[place].wakes_at
        if time is not None:
            heappush(self._due, (time, place))


def _message(arrival: Arrival, number: int) -> AddRequest:
    tokens = list(chain.from_iterable(repeat(token, length) for token, length in arrival.prompt))
    return AddRequest(
        req_id=str(number),
        prompt_token_ids=tokens,
        sampling=_sampling(arrival.output_len),
        session=arrival.session,
    )


@lru_cache(1 << 16)
def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)
