"""The figures and gates of a run, as Markdown and as JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tools.soak.gates import Gate
from tools.soak.processes import Record
from tools.soak.trouble import Faults

_MOST_WORDS = 10


def markdown(figures: Mapping[str, str], gates: Iterable[Gate], faults: Faults) -> str:
    lines = ["| figure | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in figures.items()]
    lines += ["", "| gate | found | limit | |", "|---|---|---|---|"]
    lines += [
        f"| {gate.name} | {gate.figure} | {gate.limit} | {'passed' if gate.passed else 'FAILED'} |"
        for gate in gates
    ]
    for kind, words in faults.words.items():
        lines += ["", f"FAILED: {kind}", ""]
        lines += [f"- {count} x {said}" for said, count in words.most_common(_MOST_WORDS)]
    return "\n".join(lines)


def as_json(
    figures: Mapping[str, str], gates: Iterable[Gate], faults: Faults, record: Record
) -> dict[str, Any]:
    return {
        "figures": dict(figures),
        "gates": [asdict(gate) for gate in gates],
        "faults": {kind: dict(words) for kind, words in faults.words.items()},
        "memory, bytes by requests served": {
            f"{role} {pid}": samples for (role, pid), samples in record.memory.items()
        },
    }
