"""Tables of what phases found, and what to fix first."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Records = Mapping[str, Mapping[str, Any]]

MOST_ERROR = 0.02
"""The most that outputs may differ by, relative to their size: bf16 has but 8 bits."""
ENOUGH = 0.6
"""A share of the ceiling."""
_WELL = ("fits", "is there")
_LISTED = 30


class Finding(NamedTuple):
    rank: int
    weight: float
    """Among those of a rank, the largest comes first."""
    text: str


BROKEN, WRONG, LOST, TOO_MUCH, SLOW = range(5)
"""Ranks: the machine lacks something, a result is wrong, a phase did not end, memory, speed."""
HEADINGS = {
    BROKEN: "this machine lacks it", WRONG: "wrong", LOST: "not seen to work",
    TOO_MUCH: "memory and graphs", SLOW: "slow",
}  # fmt: skip


def report(records: Records) -> tuple[str, bool]:
    """(Markdown, whether anything is worse than slow)."""
    findings = sorted(_findings(records), key=lambda one: (one.rank, -one.weight))
    lines = [*_machine(records), *_tests(records), *_operations(records), *_engines(records)]
    lines += ["", "## What to fix first", ""]
    lines += [
        f"{number}. {HEADINGS[one.rank]}: {one.text}"
        for number, one in enumerate(findings[:_LISTED], 1)
    ] or ["Nothing was found."]
    if len(findings) > _LISTED:
        lines.append(f"\n{len(findings) - _LISTED} more are in gpu_check.json.")
    return "\n".join(lines).strip(), any(one.rank < SLOW for one in findings)


def _of(records: Records, kind: str) -> dict[str, Mapping[str, Any]]:
    return {name: record for name, record in records.items() if name.split()[0] == kind}


def _found(records: Records, kind: str) -> dict[str, Any]:
    """What all phases of a kind found."""
    found: dict[str, Any] = {}
    for record in _of(records, kind).values():
        found |= record["found"]
    return found


def _findings(records: Records) -> Iterator[Finding]:
    for name, record in records.items():
        if "fault" in record:
            # The earlier ones hide most.
            yield Finding(LOST, _importance(name), f"{name}: {record['fault']}")
    yield from _lacking(_found(records, "probe"))
    for name, record in _of(records, "tests").items():
        failed = record["found"].get("failed", {})
        if failed:
            test, why = next(iter(failed.items()))
            yield Finding(WRONG, len(failed), f"{name}: {len(failed)} failed, as {test}: {why}")
    for name, row in _rows(_found(records, "parity")):
        if "fault" in row:
            yield Finding(LOST, 50, f"{name}: {row['fault']}")
        elif row.get("error", 0) > MOST_ERROR or row.get("error", 0) != row.get("error", 0):
            text = f"{name}: differs from its reference by {row['error']:.1%} of its size"
            yield Finding(WRONG, 1e6 * row["error"], text)
    for name, record in _of(records, "engine").items():
        yield from _amiss(name, record["found"])
    yield from _slow(_found(records, "speed"))


def _importance(name: str) -> float:
    kinds = ("engine", "speed", "parity", "tests", "probe")
    return 100.0 * (1 + kinds.index(name.split()[0])) if name.split()[0] in kinds else 0.0


def _lacking(probe: dict[str, Any]) -> Iterator[Finding]:
    missing = probe.get("missing wheels")
    if missing:
        yield Finding(BROKEN, 3, f"carry the wheels of {', '.join(missing)}")
    for name in ("torch for this GPU", "what launches need"):
        if name in probe and probe[name] not in _WELL:
            yield Finding(BROKEN, 2, f"{name}: {probe[name]}")
    for name, value in probe.items():
        if isinstance(value, str) and value.startswith("FAILED") and name not in (
            "torch for this GPU", "what launches need"
        ):  # fmt: skip
            yield Finding(BROKEN, 1, f"{name}: {value}")


def _amiss(name: str, found: dict[str, Any]) -> Iterator[Finding]:
    if found.get("gave up"):
        yield Finding(TOO_MUCH, 1e3, f"{name}: capturing was given up; its log says why")
    for size, why in found.get("not captured", {}).items():
        yield Finding(TOO_MUCH, 100, f"{name}: a step of {size} is not captured: {why}")
    planned = (found.get("memory", {}).get("activations") or [None])[0]
    for what, taken in found.get("steps took bytes", {}).items():
        if planned and taken > planned:
            text = f"{name}: {what} took {taken >> 20} MiB, {planned >> 20} MiB were planned"
            yield Finding(TOO_MUCH, 200 + taken / planned, text)
    captured, eager = found.get("captured ms", {}), found.get("op by op ms", {})
    for batch in captured.keys() & eager.keys():
        if captured[batch] > eager[batch]:
            text = f"{name}: captured steps of {batch} are slower than op by op"
            yield Finding(SLOW, 1e9, text)


def _slow(speed: dict[str, Any]) -> Iterator[Finding]:
    for name, row in _rows(speed):
        if "fault" in row:
            yield Finding(LOST, 40, f"{name}, timed: {row['fault']}")
        elif row["share"] < ENOUGH:
            lost = row["us"] * (1 - row["share"]) * row["layers"]
            text = (
                f"{name}: {row['us']:,.0f} us, {row['share']:.0%} of what {row['bound']} allow; "
                f"{lost / 1e3:.1f} ms lost in a step of {row['layers']} layers"
            )
            yield Finding(SLOW, lost, text)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was found of operations."""
    for name, row in found.items():
        if isinstance(row, dict) and row.keys() & {"us", "error", "first s", "fault"}:
            yield name, row


def _machine(records: Records) -> Iterator[str]:
    yield "# A check of the GPU backend\n"
    for name, value in _found(records, "probe").items():
        yield f"- {name}: {value}"
    yield "\n| phase | s | |\n|---|---:|---|"
    for name, record in records.items():
        yield f"| {name} | {record['seconds']:.0f} | {record.get('fault', '')} |"


def _tests(records: Records) -> Iterator[str]:
    tests = _of(records, "tests")
    if tests:
        yield "\n| tests, natively | passed | failed | skipped |\n|---|---:|---:|---:|"
    for name, record in tests.items():
        counts = record["found"].get("counts", {})
        cells = (str(counts.get(kind, 0)) for kind in ("passed", "failed", "skipped"))
        yield f"| {name.removeprefix('tests ')} | {' | '.join(cells)} |"


def _operations(records: Records) -> Iterator[str]:
    parity = dict(_rows(_found(records, "parity")))
    found = _found(records, "speed")
    speed, top = dict(_rows(found)), found.get("ceilings")
    if not parity and not speed:
        return
    if top:
        copied, multiplied = top["copy"] / 1e12, top["matmul"] / 1e12
        yield f"\nIt copies {copied:.2f} TB/s and multiplies {multiplied:.0f} Tflop/s.\n"
    yield "| operation | us | share | bound | error | first s |\n|---|---:|---:|---|---:|---:|"
    for name in {**parity, **speed}:
        row = {**parity.get(name, {}), **speed.get(name, {})}
        share = f"{row['share']:.0%}" if "share" in row else ""
        error = f"{row['error']:.1e}" if "error" in row else ""
        cells = [f"{row['us']:,.1f}" if "us" in row else "", share, row.get("bound", ""), error]
        yield f"| {name} | {' | '.join(cells)} | {row.get('first s', '')} |"


def _engines(records: Records) -> Iterator[str]:
    for name, record in _of(records, "engine").items():
        yield f"\n## {name}\n"
        for what, value in record["found"].items():
            if what == "kernels":
                yield from (f"- {count} x {each} us: `{kernel}`" for kernel, count, each in value)
            else:
                yield f"- {what}: {_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())
    return str(value)
