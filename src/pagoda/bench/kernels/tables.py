"""The tables of `bench micro`."""

import json
from collections.abc import Sequence
from typing import Any

from pagoda.base.units import format_bytes
from pagoda.bench.kernels.run import Ceilings, Timing
from pagoda.version import __version__


def markdown(ceilings: Ceilings, timings: Sequence[Timing], facts: dict[str, Any]) -> str:
    lines = [f"| {'ceiling':<38}|          |", f"|{'-' * 39}|---------:|"]
    for size, speed in ceilings.read.items():
        lines.append(f"| {'reads ' + format_bytes(size) + ', GB/s':<38}| {speed / 1e9:8.1f} |")
    lines.append(f"| {'8-bit dot products, Gop/s':<38}| {ceilings.dot / 1e9:8.0f} |")
    lines.append(f"| {'fp32 multiply-add, Gop/s':<38}| {ceilings.fma / 1e9:8.0f} |")
    lines += [
        "",
        f"| {'kernel':<38}| tokens |     us |   GB/s |  Gop/s | % of the ceiling |",
        f"|{'-' * 39}|-------:|-------:|-------:|-------:|-----------------:|",
    ]
    for timing in timings:
        case = timing.case
        lines.append(
            f"| {case.kernel + ' ' + case.what:<38}| {case.tokens:6} | {timing.seconds * 1e6:6.0f} "
            f"| {case.nbytes / timing.seconds / 1e9:6.1f} "
            f"| {case.ops / timing.seconds / 1e9:6.0f} | {timing.percent:16.0f} |"
        )
    described = ", ".join(f"{key} {value}" for key, value in facts.items())
    return "\n".join([*lines, "", f"pagoda {__version__}: {described}"])


def as_json(ceilings: Ceilings, timings: Sequence[Timing], facts: dict[str, Any]) -> str:
    result = {
        "version": __version__,
        **facts,
        "ceilings": {
            "read_bytes_per_second": {str(size): speed for size, speed in ceilings.read.items()},
            "dot_ops_per_second": ceilings.dot,
            "fma_ops_per_second": ceilings.fma,
        },
        "kernels": [
            {
                "kernel": timing.case.kernel,
                "what": timing.case.what,
                "tokens": timing.case.tokens,
                "seconds": timing.seconds,
                "bytes": timing.case.nbytes,
                "ops": timing.case.ops,
                "percent_of_ceiling": timing.percent,
            }
            for timing in timings
        ],
    }
    return json.dumps(result, indent=2)
