"""Goals such as "p99 ttft < 2s", and how many replicas they need."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda.base.errors import ConfigError
from pagoda.simulate.records import METRICS, Records
from pagoda.simulate.world import Outcome

_GOAL = re.compile(
    rf"\s*(mean|median|p(\d{{1,2}}(?:\.\d+)?|100))\s+({'|'.join(METRICS)})\s*<=?\s*"
    r"(\d+(?:\.\d+)?)\s*(ms|s)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Goal:
    text: str
    metric: str
    percentile: float | None
    """None: it is about the mean."""
    seconds: float

    def reached(self, records: Records) -> float:
        """In seconds, what is to be below `seconds`."""
        if self.percentile is None:
            return records.mean(self.metric)
        return records.percentiles(self.metric, [self.percentile])[0]

    def holds(self, outcome: Outcome) -> bool:
        """Whether it is met, and every request was served."""
        whole = not outcome.stopped and not outcome.records.num_refused
        return whole and self.reached(outcome.records) <= self.seconds


def parse_goal(text: str) -> Goal:
    """Raises ConfigError for what is no goal."""
    match = _GOAL.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--goal {text!r} is none; write such as 'p99 ttft < 2s' or 'mean itl < 50ms' "
            f"(mean, median or a percentile of {', '.join(METRICS)})."
        )
    which, percentile, metric, number, unit = match.groups()
    seconds = float(number) / (1000 if unit.lower() == "ms" else 1)
    named = {"mean": None, "median": 50.0}
    wanted = named[which.lower()] if percentile is None else float(percentile)
    return Goal(" ".join(text.split()), metric.lower(), wanted, seconds)


class Hopeless:
    """Notices when a goal about percentiles can no longer be met, whatever is still to come."""

    def __init__(self, goals: Sequence[Goal], num_requests: int):
        self._limits = [
            (goal.metric, goal.seconds, (1 - goal.percentile / 100) * (num_requests - 1) + 1)
            for goal in goals
            if goal.percentile is not None and goal.metric in ("ttft", "e2e")
        ]
        self._seen = 0
        self._late = [0] * len(self._limits)

    def __call__(self, records: Records) -> bool:
        if records.num_refused:
            return True
        done = records.completed
        if done == self._seen:
            return False
        first, self._seen = self._seen, done
        for place, (metric, seconds, allowed) in enumerate(self._limits):
            self._late[place] += sum(took > seconds for took in getattr(records, metric)[first:])
            if self._late[place] > allowed:
                return True
        return False


def replicas_for(
    goals: Sequence[Goal], run: Callable[[int, Hopeless], Outcome], num_requests: int
) -> tuple[Outcome | None, list[Outcome]]:
    """The outcome with the fewest replicas that meet all goals, and all that were tried. More
    replicas are taken to be no worse. None: no number is enough, for with as many as there were
    requests at once it was not."""
    tried: list[Outcome] = []

    def holds(count: int) -> bool:
        tried.append(run(count, Hopeless(goals, num_requests)))
        return all(goal.holds(tried[-1]) for goal in goals)

    too_few, enough = 0, 1
    while not holds(enough):
        last = tried[-1]
        if last.records.num_refused or enough >= last.records.most_at_once():
            return None, tried
        too_few, enough = enough, 2 * enough
    best = tried[-1]
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if holds(middle):
            enough, best = middle, tried[-1]
        else:
            too_few = middle
    return best, tried
