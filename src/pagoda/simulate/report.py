"""The report of a simulation, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from pagoda.base.columns import columns, left, right
from pagoda.base.words import say, tell
from pagoda.simulate.goals import Goal
from pagoda.simulate.records import METRICS, PERCENTILES, mean
from pagoda.simulate.world import Outcome

_NAMES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}


def as_json(outcome: Outcome, goals: Sequence[Goal], price: float | None) -> dict[str, Any]:
    """All figures; times in seconds, `price` per replica and hour."""
    records, duration = outcome.records, outcome.records.duration
    tokens = records.output_tokens
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
        "kv_share_mean": mean(records.kv_shares),
        "kv_share_peak": max(records.kv_shares, default=0.0),
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
    """What `as_json` has, as text in the language spoken."""
    count, duration = found["replicas"], found["duration"]
    fleet = say("one replica") if count == 1 else say(
        "{count:,} replicas, {router}", count=count, router=found["router"]
    )  # fmt: skip
    said = [
        tell(
            "{fleet}: {completed:,} of {requests:,} requests in {duration:,.1f} s",
            fleet=fleet, completed=found["completed"], requests=found["requests"],
            duration=duration,
        ),
        tell(
            "throughput: {requests:,.2f} requests/s, {output:,.1f} output tokens/s, "
            "{total:,.1f} tokens/s with prompts",
            requests=found["requests_per_second"], output=found["output_tokens_per_second"],
            total=found["total_tokens_per_second"],
        ),
        "",
        *_table(found),
        "",
        tell(
            "KV cache: {mean:.1%} held on average, {peak:.1%} at most; prefix hits {hits:.1%}; "
            "preemptions {preemptions:,}",
            mean=found["kv_share_mean"], peak=found["kv_share_peak"],
            hits=found["prefix_hit_rate"], preemptions=found["preemptions"],
        ),
        tell(
            "computing {share:.1%} of the time, in {steps:,} steps",
            share=found["busy_share"], steps=found["steps"],
        ),
    ]  # fmt: skip
    if "cost" in found:
        said.append(tell(
            "cost: {cost:,.2f}, or {output:,.3f} per million output tokens, {total:,.3f} with "
            "prompts",
            cost=found["cost"], output=found["cost_per_million_output_tokens"],
            total=found["cost_per_million_tokens"],
        ))  # fmt: skip
    for goal in found["goals"]:
        verdict = say("holds") if goal["holds"] else say("does not hold")
        reached = 1000 * goal["reached"]
        said.append(tell("goal {goal}: {verdict}, {reached:,.1f} ms",
                         goal=goal["goal"], verdict=verdict, reached=reached))  # fmt: skip
    return said


def _table(found: dict[str, Any]) -> list[str]:
    """A line for each metric, in ms, below a heading."""
    rows = [("ms", tell("mean"), *(f"p{wanted:g}" for wanted in PERCENTILES))]
    for metric in METRICS:
        rows.append((_NAMES[metric], *(f"{1000 * each:,.1f}" for each in found[metric].values())))
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([left(row[0], widths[0]), *map(right, row[1:], widths[1:])]) for row in rows]


def tried_lines(tried: Sequence[Outcome], goals: Sequence[Goal]) -> list[str]:
    """How the number of replicas was found."""
    said = []
    for outcome in sorted(tried, key=lambda one: one.fleet.replicas):
        holds = all(goal.holds(outcome) for goal in goals)
        verdict = say("enough") if holds else say("too few")
        said.append(
            tell("{count:>5} replicas: {verdict}", count=outcome.fleet.replicas, verdict=verdict)
        )
    return said


def _rate(count: float, total: float) -> float:
    return count / total if total else 0.0
