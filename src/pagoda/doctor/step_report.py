"""A GPU's decode step, operation by operation, as text and as plain values."""

from typing import Any

from pagoda.base.columns import columns, left, right
from pagoda.base.words import say, tell, told
from pagoda.planner.devices.roofline import Step

_HEAD = (
    "", say("launches"), "MB", "GFLOP", say("us seen"), say("us at best"), say("bound by"),
)  # fmt: skip


def step_lines(step: Step) -> list[str]:
    """A table of the step's operations and their sum."""
    who = say("one request" if step.requests == 1 else "{count:,} requests", count=step.requests)
    rows: list[tuple[str, ...]] = [tuple(map(told, _HEAD))]
    for line in step.lines:
        work = (f"{line.nbytes / 1e6:,.1f}", f"{line.flops / 1e9:,.2f}")
        times = (f"{line.seen * 1e6:,.0f}", f"{line.best * 1e6:,.0f}")
        rows.append((line.name, str(line.launches), *work, *times, told(line.bound)))
    rows.append(_sum(step))
    widths = [max(columns(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        tell(
            "a decode step of {who} behind {context:,} tokens (estimate; seen: with the shares of "
            "a GPU's limits that vLLM was seen to reach)",
            who=who, context=step.context,
        ),
        *("  " + _aligned(row, widths) for row in rows),
        tell(
            "  {seen:,.1f} tokens/s as seen, {best:,.1f} at best",
            seen=step.requests / step.seen, best=step.requests / step.best,
        ),
    ]  # fmt: skip


def step_json(step: Step) -> dict[str, Any]:
    """Times in seconds."""
    return {
        "requests": step.requests,
        "context": step.context,
        "seconds_as_seen": step.seen,
        "seconds_at_best": step.best,
        "operations": [
            {
                "name": line.name,
                "launches": line.launches,
                "bytes": round(line.nbytes),
                "flops": round(line.flops),
                "seconds_as_seen": line.seen,
                "seconds_at_best": line.best,
                "bound": line.bound,
            }
            for line in step.lines
        ],
    }


def _sum(step: Step) -> tuple[str, ...]:
    starts = sum(line.launches for line in step.lines)
    nbytes = sum(line.nbytes for line in step.lines) / 1e6
    flops = sum(line.flops for line in step.lines) / 1e9
    times = (f"{step.seen * 1e6:,.0f}", f"{step.best * 1e6:,.0f}")
    return (tell("together"), str(starts), f"{nbytes:,.1f}", f"{flops:,.2f}", *times, "")


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        left(cell, width) if column in (0, len(row) - 1) else right(cell, width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
