"""What a load test measured, as the figures that vLLM's `bench serve` reports."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token after it, gap between chunks, whole latency."""


@dataclass
class RequestRecord:
    """One request as its client saw it; times in seconds."""

    prompt_tokens: int
    started: float = 0.0
    """time.perf_counter() when it was sent."""
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    latency: float = 0.0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def success(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float | None:
        """None for a reply of one token: it has no second one to wait for."""
        if self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


def summarize(
    records: Sequence[RequestRecord],
    duration: float,
    *,
    percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Totals, throughputs and latency statistics in milliseconds, under vLLM's JSON keys.

    `goodput` maps a metric to the milliseconds that a good request stays within.
    """
    good = [record for record in records if record.success]
    inputs = sum(record.prompt_tokens for record in good)
    outputs = sum(record.output_tokens for record in good)
    within = None if goodput is None else sum(_meets(record, goodput) for record in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _rate(len(good), duration),
        "request_goodput": None if within is None else _rate(within, duration),
        "output_throughput": _rate(outputs, duration),
        "total_token_throughput": _rate(inputs + outputs, duration),
        "max_output_tokens_per_s": peak_tokens_per_second(good),
        "max_concurrent_requests": peak_concurrency(good),
    }
    for metric, seconds in _samples(good).items():
        result |= _statistics(metric, seconds, percentiles)
    return result


def peak_tokens_per_second(records: Sequence[RequestRecord]) -> float:
    """The most chunks received within one second, counted in whole seconds from the start."""
    if not records:
        return 0.0
    origin = min(record.started for record in records)
    seconds: Counter[int] = Counter()
    for record in records:
        arrivals = record.started - origin + np.cumsum([record.ttft, *record.itls])
        seconds.update(int(second) for second in arrivals)
    return float(max(seconds.values()))


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests that were under way at one moment."""
    edges = [(record.started, 1) for record in records]
    edges += [(record.started + record.latency, -1) for record in records]
    running = most = 0
    for _, change in sorted(edges):
        running += change
        most = max(most, running)
    return most


def percentile_name(percentile: float) -> str:
    """`p99`, `p99.9`."""
    return f"p{percentile:g}"


def _samples(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    return {
        "ttft": [record.ttft for record in records],
        "tpot": [record.tpot for record in records if record.tpot is not None],
        "itl": [gap for record in records for gap in record.itls],
        "e2el": [record.latency for record in records],
    }


def _statistics(
    metric: str, seconds: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    values = np.array(seconds if seconds else [0.0]) * 1000
    result = {
        f"mean_{metric}_ms": float(np.mean(values)),
        f"median_{metric}_ms": float(np.median(values)),
        f"std_{metric}_ms": float(np.std(values)),
    }
    for percentile in percentiles:
        name = f"{percentile_name(percentile)}_{metric}_ms"
        result[name] = float(np.percentile(values, percentile))
    return result


def _meets(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    seconds = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.latency}
    return all(seconds[metric] * 1000 <= limit for metric, limit in limits.items())


def _rate(count: float, duration: float) -> float:
    return count / duration if duration > 0 else 0.0
