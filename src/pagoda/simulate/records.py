"""What happened to the requests of a simulation, and figures computed from that."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import fsum, inf
from operator import mul

import numpy as np
import numpy.typing as npt

PERCENTILES = (50.0, 90.0, 99.0)
METRICS = ("ttft", "itl", "tpot", "e2e")
"""Seconds until the first token, between two tokens, between two of a reply on average, and until
the last one."""


def _floats() -> "array[float]":
    return array("d")


def _ints() -> "array[int]":
    return array("q")


@dataclass
class Records:
    """Times in seconds of the clock that is simulated."""

    ttft: "array[float]" = field(default_factory=_floats)
    tpot: "array[float]" = field(default_factory=_floats)
    e2e: "array[float]" = field(default_factory=_floats)
    gaps: "array[float]" = field(default_factory=_floats)
    """Times between two tokens of a reply,"""
    gap_counts: "array[int]" = field(default_factory=_ints)
    """and how often there was each."""
    kv_shares: "array[float]" = field(default_factory=_floats)
    """Share of a replica's KV cache that was held, whenever a request came to it or ended."""
    num_refused: int = 0
    """Requests that no replica can serve."""
    refusal: tuple[float, str] = (0.0, "")
    """When the last one of them came, and why it was refused."""
    came: "array[float]" = field(default_factory=_floats)
    """When each of the others came to a replica,"""
    left: "array[float]" = field(default_factory=_floats)
    """and when each ended there, in an order of their own."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    began: float = inf
    """When the first request came,"""
    ended: float = 0.0
    """and when the last one ended."""

    def finish(self, arrived: float, first: float, ended: float, num_tokens: int) -> None:
        """A request got the last of its tokens."""
        self.ttft.append(first - arrived)
        self.e2e.append(ended - arrived)
        if num_tokens > 1:
            self.tpot.append((ended - first) / (num_tokens - 1))
        self.left.append(ended)
        self.output_tokens += num_tokens
        self.ended = max(self.ended, ended)

    def gap(self, seconds: float, count: int = 1) -> None:
        self.gaps.append(seconds)
        self.gap_counts.append(count)

    def refuse(self, now: float, why: str) -> None:
        self.num_refused += 1
        self.refusal = max(self.refusal, (now, why))

    def add(self, other: "Records") -> None:
        """Take in what happened to other requests at the same time."""
        for name in _LISTS:
            getattr(self, name).extend(getattr(other, name))
        self.num_refused += other.num_refused
        self.refusal = max(self.refusal, other.refusal)
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        self.began = min(self.began, other.began)
        self.ended = max(self.ended, other.ended)

    def most_at_once(self) -> int:
        """The most requests that were under way."""
        times = np.concatenate([self.came, self.left])
        change = np.repeat([1, -1], [len(self.came), len(self.left)])
        # Who comes at a time comes before who ends then.
        order = np.lexsort((-change, times))
        return int(np.cumsum(change[order]).max(initial=0))

    @property
    def completed(self) -> int:
        return len(self.e2e)

    @property
    def duration(self) -> float:
        return max(0.0, self.ended - self.began)

    def percentiles(self, metric: str, wanted: Sequence[float]) -> list[float]:
        """In seconds, as numpy's of all values; 0 where there are none."""
        if metric == "itl":
            return weighted_percentiles(np.array(self.gaps), np.array(self.gap_counts), wanted)
        values = np.array(getattr(self, metric))
        return [float(found) for found in np.percentile(values, wanted)] if len(values) else [
            0.0 for _ in wanted
        ]  # fmt: skip

    def mean(self, metric: str) -> float:
        """In seconds; 0 where there are no values. Sums are exact, so that no order matters."""
        if metric == "itl":
            total = fsum(map(mul, self.gaps, self.gap_counts))
            return total / sum(self.gap_counts) if self.gaps else 0.0
        return mean(getattr(self, metric))

    def summary(self) -> Mapping[str, Mapping[str, float]]:
        """By metric, its mean and percentiles in seconds."""
        return {
            metric: {
                "mean": self.mean(metric),
                **{
                    f"p{wanted:g}": found
                    for wanted, found in zip(
                        PERCENTILES, self.percentiles(metric, PERCENTILES), strict=True
                    )
                },
            }
            for metric in METRICS
        }


_LISTS = tuple(one.name for one in fields(Records) if "array" in str(one.type))


def mean(values: Sequence[float]) -> float:
    """The mean, by an exact sum; 0 if there are no values."""
    return fsum(values) / len(values) if values else 0.0


def weighted_percentiles(
    values: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], wanted: Sequence[float]
) -> list[float]:
    """What `np.percentile` gives where each value is there so many times."""
    if not len(values):
        return [0.0 for _ in wanted]
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    places = np.array(wanted) / 100 * (ends[-1] - 1)
    low, high = (
        np.searchsorted(ends, whole(places), side="right") for whole in (np.floor, np.ceil)
    )
    share = places - np.floor(places)
    return [float(found) for found in values[low] + share * (values[high] - values[low])]
