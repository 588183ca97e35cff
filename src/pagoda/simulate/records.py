"""What happened to the requests of a simulation, and figures computed from that."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    refusal: str = ""
    """Why, of the last one."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    began: float = 0.0
    """When the first request came,"""
    ended: float = 0.0
    """and when the last one ended."""

    def finish(self, arrived: float, first: float, ended: float, num_tokens: int) -> None:
        """A request got the last of its tokens."""
        self.ttft.append(first - arrived)
        self.e2e.append(ended - arrived)
        if num_tokens > 1:
            self.tpot.append((ended - first) / (num_tokens - 1))
        self.output_tokens += num_tokens
        self.ended = max(self.ended, ended)

    def gap(self, seconds: float, count: int = 1) -> None:
        self.gaps.append(seconds)
        self.gap_counts.append(count)

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
        """In seconds; 0 where there are no values."""
        if metric == "itl":
            counts = np.array(self.gap_counts)
            return float(np.dot(np.array(self.gaps), counts) / counts.sum()) if len(counts) else 0.0
        values = np.array(getattr(self, metric))
        return float(values.mean()) if len(values) else 0.0

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
