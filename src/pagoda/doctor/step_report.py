"""A GPU's decode step, operation by operation, as text and as plain values."""

from typing import Any

from pagoda.planner.devices.roofline import Step

_HEAD = ("", "launches", "MB", "GFLOP", "us seen", "us at best", "bound by")


def step_lines(step: Step) -> list[str]:
    """A table of the step's operations and their sum."""
    who = "one request" if step.requests == 1 else f"{step.requests:,} requests"
    rows: list[tuple[str, ...]] = [_HEAD]
    for line in step.lines:
        work = (f"{line.nbytes / 1e6:,.1f}", f"{line.flops / 1e9:,.2f}")
        times = (f"{line.seen * 1e6:,.0f}", f"{line.best * 1e6:,.0f}")
        rows.append((line.name, str(line.launches), *work, *times, line.bound))
    rows.append(_sum(step))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        f"a decode step of {who} behind {step.context:,} tokens (estimate; seen: with the shares "
        "of a GPU's limits that vLLM was seen to reach)",
        *("  " + _aligned(row, widths) for row in rows),
        f"  {step.requests / step.seen:,.1f} tokens/s as seen, "
        f"{step.requests / step.best:,.1f} at best",
    ]


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
    return ("together", str(starts), f"{nbytes:,.1f}", f"{flops:,.2f}", *times, "")


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
