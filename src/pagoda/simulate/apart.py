"""Replicas that know nothing of each other: each process simulates some of them."""

import gc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import compress, cycle
from multiprocessing import get_context
from typing import Any

from pagoda.base.machine import usable_threads
from pagoda.simulate.traces import Arrival, Trace
from pagoda.simulate.world import Fleet, Outcome, Part, Progress, outcome, simulate_part

_SECONDS_BETWEEN_LOOKS = 0.2


def are_apart(trace: Trace, fleet: Fleet) -> bool:
    """Whether it is known beforehand which requests each of several replicas gets, and when."""
    alone = fleet.machine.engines == 1
    return (
        fleet.replicas > 1 and alone and fleet.router == "round-robin" and not trace.has_followers
    )


def simulate_apart(
    trace: Trace, fleet: Fleet, *, processes: int | None = None, progress: Progress | None = None
) -> Outcome:
    """What `simulate` gives for a fleet whose replicas `are_apart`, by so many processes; as many
    as there are CPUs if not said."""
    count = min(processes or usable_threads(), fleet.replicas)
    context = get_context()
    done = context.RawArray("q", count)
    with ProcessPoolExecutor(count, context, _start, (trace, fleet, done)) as pool:
        tasks = [pool.submit(_run, first) for first in range(count)]
        while wait(tasks, _SECONDS_BETWEEN_LOOKS).not_done:
            if progress is not None:
                progress(sum(done))
        return outcome(trace, fleet, [task.result() for task in tasks])


class _Dealt:
    """The requests of every so many replicas from one on, to which a trace is dealt in turn."""

    has_followers = False

    def __init__(self, trace: Trace, replicas: int, first: int, stride: int):
        self._trace = trace
        self._is_mine = [place % stride == first for place in range(replicas)]
        self.num_requests = trace.num_requests  # whoever sums up asks the whole trace

    def __iter__(self) -> Iterator[Arrival]:
        return compress(self._trace, cycle(self._is_mine))


_given: Any = None
"""What a process of the pool was started with."""


def _start(*given: Any) -> None:
    global _given
    _given = given
    gc.disable()  # requests are in no cycles


def _run(first: int) -> Part:
    """Simulate every so many replicas, from one on, which take turns as they do among all."""
    trace, fleet, done = _given
    mine = len(range(first, fleet.replicas, len(done)))

    def tell(count: int) -> None:
        done[first] = count

    dealt = _Dealt(trace, fleet.replicas, first, len(done))
    return simulate_part(dealt, replace(fleet, replicas=mine), progress=tell)
