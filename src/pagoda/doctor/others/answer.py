"""What is said of another engine: the same as of Pagoda, by its own rules."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pagoda.base.units import format_bytes
from pagoda.base.words import say, tell
from pagoda.doctor.answer import Answer, Flag
from pagoda.doctor.command import INDENT, flag_words, key_note, quoted
from pagoda.doctor.findings import Finding
from pagoda.doctor.model_report import (
    finding_words,
    flag_line,
    flags_json,
    flags_line,
    heading,
    memory_row,
    place,
    question_json,
    remedies_json,
    would_fit,
)
from pagoda.doctor.remedies.search import Remedy
from pagoda.planner.estimate import Row


@dataclass(frozen=True)
class OtherEngine:
    name: str
    """As it was asked for."""
    rows: tuple[Row, ...]
    """Rows of one device's memory."""
    fits: bool
    lines: tuple[str, ...]
    """As its log will say, and what is to be known besides."""
    problem: str = ""
    """Why it does not fit."""
    command: str = ""
    """What starts it, ready to be pasted; empty where there is none."""
    flags: tuple[Flag, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    findings: tuple[Finding, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    """Further values for `--json`, under the names that Pagoda's own have."""


def engine_lines(other: OtherEngine, made: Answer, why: bool = False) -> list[str]:
    """The whole answer; with `why` each flag's reason."""
    memory = say(
        "{engine}, memory of each" if made.hardware.count > 1 else "{engine}, memory",
        engine=other.name,
    )
    out = [*heading(made), "", memory]
    for row in other.rows:
        size = row.bytes
        shown = format_bytes(size) if isinstance(size, int) else _between(size)
        out.append(memory_row(row.item, shown, row.exactness, row.detail, width=22))
    out += ["", *other.lines]
    return [*out, *finding_words(other.findings), *_flags(other, why), "", *_verdict(other, made)]


def _flags(other: OtherEngine, why: bool) -> list[str]:
    if not other.flags:
        return []
    words = [quoted(flag_words(flag.name, flag.value)) for flag in other.flags]
    if not why:
        return ["", flags_line("  ".join(words))]
    both = zip(words, other.flags, strict=True)
    return ["", tell("flags"), *(flag_line(word, flag.why) for word, flag in both)]


def _verdict(other: OtherEngine, made: Answer) -> Iterator[str]:
    known = {"engine": other.name, "where": place(made)}
    if other.fits:
        yield say(
            "{engine}: it starts {where}:" if other.command else "{engine}: it starts {where}.",
            **known,
        )
        if other.command:
            yield INDENT + other.command
            yield from key_note(other.command)
        return
    yield say("{engine}: it does not start {where}.", **known)
    yield other.problem
    if not other.remedies:
        yield say(
            "Nothing that is known here makes it fit: take fewer bits, or more or larger devices."
        )
        return
    yield from would_fit(other.remedies)


def _between(bounds: Sequence[int]) -> str:
    low, high = (format_bytes(bound) for bound in bounds)
    return low if low == high else f"{low} - {high}"


def engine_json(other: OtherEngine, made: Answer) -> dict[str, Any]:
    """Bytes and tokens, all of that engine; `fits` is the verdict."""
    rows = [
        {
            "item": row.item, "exactness": row.exactness, "low": row.estimate.low,
            "bytes": row.estimate.likely, "high": row.estimate.high, "detail": row.detail,
        }
        for row in other.rows
    ]  # fmt: skip
    return {
        **question_json(made),
        "engine": other.name,
        "fits": other.fits,
        "problem": other.problem or None,
        "memory": rows,
        "memory_total": sum(row.estimate.likely for row in other.rows),
        **other.numbers,
        "log": list(other.lines),
        "findings": [asdict(finding) for finding in other.findings],
        "flags": flags_json(other.flags),
        "command": other.command or None,
        "remedies": remedies_json(other.remedies),
    }
