"""The printed result of a load test, in vLLM's layout."""

import math
from collections.abc import Sequence
from typing import Any

from pagoda.bench.stats import percentile_name

_WIDTH = 50
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_ROWS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)
_GUESSES = (
    ("Acceptance rate (%):", "acceptance_rate"),
    ("Acceptance length:", "acceptance_length"),
    ("Drafts:", "num_drafts"),
    ("Draft tokens:", "draft_tokens"),
    ("Accepted tokens:", "accepted_tokens"),
)


def serving_table(
    result: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]
) -> str:
    """`result` as `stats.summarize` makes it, with max_concurrency and request_rate, and as
    `guesses.summarize_guesses` does."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    for title, key in _ROWS:
        value = result.get(key)
        if value is not None and not (key == "request_rate" and math.isinf(float(value))):
            lines.append(_row(title, value))
    for metric in metrics:
        name = metric.upper()
        lines.append(f"{_TITLES[metric]:-^{_WIDTH}}")
        lines.append(_row(f"Mean {name} (ms):", result[f"mean_{metric}_ms"]))
        lines.append(_row(f"Median {name} (ms):", result[f"median_{metric}_ms"]))
        for percentile in percentiles:
            key = f"{percentile_name(percentile)}_{metric}_ms"
            lines.append(_row(f"P{percentile:g} {name} (ms):", result[key]))
    if "spec_decode_num_drafts" in result:
        lines.append(f"{'Speculative Decoding':-^{_WIDTH}}")
        lines += [_row(title, result[f"spec_decode_{key}"]) for title, key in _GUESSES]
        lines.append("Per-position acceptance (%):")
        rates = result["spec_decode_per_position_acceptance_rates"]
        lines += [_row(f"  Position {place}:", 100 * rate) for place, rate in enumerate(rates)]
    lines.append("=" * _WIDTH)
    return "\n".join(lines)


def _row(title: str, value: float) -> str:
    text = f"{value:<10.2f}" if isinstance(value, float) else f"{value:<10}"
    return f"{title:<40} {text}"
