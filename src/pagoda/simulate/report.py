"""The report of a simulation, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from pagoda.simulate.goals import Goal
from pagoda.simulate.records import METRICS, PERCENTILES
from pagoda.simulate.world import Outcome

_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}


def as_json(outcome: Outcome, goals: Sequence[Goal], price: float | None) -> dict[str, Any]:
    """All figures; times in seconds, `price` per replica and hour."""
    records, duration = outcome.records, outcome.records.duration
    tokens = records.output_tokens
    kv = records.kv_shares
    found = {
        "replicas": outcome.fleet.replicas,
        "router": outcome.fleet.router,
        "requests": outcome.num_requests,
        "completed": records.completed,
        "refused": records.num_refused,
        "duration": duration,
        "prompt_tokens": records.prompt_tokens,
        "output_tokens": tokens,
        "requests_per_second": _rate(records.completed, duration),
        "output_tokens_per_second": _rate(tokens, duration),
        "total_tokens_per_second": _rate(tokens + records.prompt_tokens, duration),
        **records.summary(),
        "kv_share_mean": sum(kv) / len(kv) if kv else 0.0,
        "kv_share_peak": max(kv, default=0.0),
        "prefix_hit_rate": _rate(outcome.prefix_hits, outcome.prefix_queries),
        "preemptions": outcome.preemptions,
        "steps": outcome.steps,
        "busy_share": outcome.busy,
        "goals": [
            {"goal": goal.text, "reached": goal.reached(records), "holds": goal.holds(outcome)}
            for goal in goals
        ],
    }
    if price is not None:
        cost = price * outcome.fleet.replicas * duration / 3600
        found |= {
            "cost": cost,
            "cost_per_million_output_tokens": 1e6 * _rate(cost, tokens),
            "cost_per_million_tokens": 1e6 * _rate(cost, tokens + records.prompt_tokens),
        }
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """What `as_json` has, as text."""
    count, steps = found["replicas"], found["steps"]
    served = f"{found['completed']:,} of {found['requests']:,} requests"
    said = [
        f"{count} replica{'s' if count > 1 else ''}"
        + (f", {found['router']}" if count > 1 else "")
        + f": {served} in {found['duration']:,.1f} s"
        + (f", {found['refused']:,} refused" if found["refused"] else ""),
        f"throughput: {found['requests_per_second']:,.2f} requests/s, "
        f"{found['output_tokens_per_second']:,.1f} output tokens/s, "
        f"{found['total_tokens_per_second']:,.1f} tokens/s with prompts",
        "",
        "| ms   | mean | " + " | ".join(f"p{wanted:g}" for wanted in PERCENTILES) + " |",
        "|------|---:|" + "---:|" * len(PERCENTILES),
    ]
    for metric in METRICS:
        numbers = " | ".join(f"{1000 * value:,.1f}" for value in found[metric].values())
        said.append(f"| {_NAMES[metric]:<4} | {numbers} |")
    said += [
        "",
        f"KV cache: {found['kv_share_mean']:.1%} held on average, {found['kv_share_peak']:.1%} at "
        f"most; prefix hits {found['prefix_hit_rate']:.1%}; {found['preemptions']:,} preemptions",
        f"computing {found['busy_share']:.1%} of the time, in {steps:,} steps",
    ]
    if "cost" in found:
        said.append(
            f"cost: {found['cost']:,.2f}, or {found['cost_per_million_output_tokens']:,.3f} per "
            f"million output tokens, {found['cost_per_million_tokens']:,.3f} with prompts"
        )
    for goal in found["goals"]:
        verdict = "holds" if goal["holds"] else "does not hold"
        said.append(f"goal {goal['goal']}: {verdict}, {1000 * goal['reached']:,.1f} ms")
    return said


def tried_lines(tried: Sequence[Outcome], goals: Sequence[Goal]) -> list[str]:
    """How the number of replicas was found."""
    said = []
    for outcome in sorted(tried, key=lambda one: one.fleet.replicas):
        holds = all(goal.holds(outcome) for goal in goals)
        verdict = "enough" if holds else "too few"
        said.append(f"{outcome.fleet.replicas:>5} replicas: {verdict}")
    return said


def _rate(count: float, total: float) -> float:
    return count / total if total else 0.0
