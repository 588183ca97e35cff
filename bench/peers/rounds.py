"""Contenders measured in turns, A B A B ..., each alone: the others are held still meanwhile."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from bench.peers import processes
from bench.peers.environments import SetupError


class Entrant(Protocol):
    pid: int


E = TypeVar("E", bound=Entrant)


@dataclass
class Outcome:
    samples: list[dict[str, Any]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Cores that processes beside the contender used, per sample."""
    error: str = ""


def alternate(
    entrants: Mapping[str, E],
    rounds: int,
    measure: Callable[[str, E, int], dict[str, Any]],
) -> dict[str, Outcome]:
    """`measure` of each name, entrant and round, after a round that does not count.

    Who fails is out, with the reason.
    """
    outcomes = {name: Outcome() for name in entrants}
    for turn in range(rounds + 1):
        for name, entrant in entrants.items():
            outcome = outcomes[name]
            if outcome.error:
                continue
            try:
                with alone(entrant) as others:
                    sample = measure(name, entrant, turn)
            except SetupError as error:
                outcome.error = str(error)
                print(f"    {name}: {error}", file=sys.stderr)
                continue
            if turn:
                outcome.samples.append(sample)
                outcome.others += others
    return outcomes


@contextlib.contextmanager
def alone(entrant: Entrant) -> Iterator[list[float]]:
    """Wake an entrant that is held still; the list gets the cores that others used meanwhile."""
    others: list[float] = []
    processes.release(entrant.pid)
    before, begun = _others(entrant.pid), time.perf_counter()
    try:
        yield others
    finally:
        wall = max(time.perf_counter() - begun, 1e-3)
        others.append(max(0.0, _others(entrant.pid) - before) / wall)
        processes.hold(entrant.pid)


def _others(pid: int) -> float:
    own = os.times()
    return processes.machine_seconds() - processes.cpu_seconds(pid) - own.user - own.system
