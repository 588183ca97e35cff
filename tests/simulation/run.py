"""Many seeds, and what is said of one that finds something."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.scenario import Scenario, scenario_of, smaller
from tests.simulation.world import Report, play

_CHUNK = 50
_TAIL = 40


@dataclass
class Summary:
    num_seeds: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """Of each seed that found something, the first of it."""
    virtual_seconds: float = 0.0
    num_requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        self.num_seeds += 1
        if report.found:
            self.failures[report.scenario.seed] = report.found[0]
        self.virtual_seconds += report.virtual_seconds
        self.num_requests += report.num_requests
        self.faults += report.faults

    def join(self, other: "Summary") -> None:
        self.num_seeds += other.num_seeds
        self.failures |= other.failures
        self.virtual_seconds += other.virtual_seconds
        self.num_requests += other.num_requests
        self.faults += other.faults


def run_seeds(seeds: Iterable[int]) -> Summary:
    summary = Summary()
    for seed in seeds:
        summary.add(play(scenario_of(seed)))
    return summary


def run_many(num_seeds: int, processes: int) -> Iterator[Summary]:
    """What all seeds so far have found, after each chunk of them."""
    chunks = [range(i, min(i + _CHUNK, num_seeds)) for i in range(0, num_seeds, _CHUNK)]
    total = Summary()
    with ProcessPoolExecutor(processes) as pool:
        for summary in pool.map(run_seeds, chunks):
            total.join(summary)
            yield total


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """A smaller scenario that still fails, from which nothing more can be left out."""
    while True:
        for less in smaller(scenario):
            if fails(less):
                scenario = less
                break
        else:
            return scenario


def still_fails(scenario: Scenario) -> bool:
    return bool(play(scenario).found)


def story(report: Report) -> str:
    """What a seed found, how that ended, and how to see it again."""
    scenario = report.scenario
    lines = [
        f"Seed {scenario.seed} found what must never be:",
        *(f"  {problem}" for problem in report.found),
        "What befell it:",
        *(f"  {event}" for event in scenario.events),
        "How it ended:",
        *(f"  {line}" for line in report.tail[-_TAIL:]),
        f"All of it: python -m tests.simulation {scenario.seed} --trace",
        f"Less of it: python -m tests.simulation {scenario.seed} --shrink",
    ]
    return "\n".join(lines)
