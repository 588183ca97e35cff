"""Findings as text for a terminal."""

from collections import Counter
from collections.abc import Sequence

from pagoda.base.columns import wrap
from pagoda.base.words import tell, told
from pagoda.doctor.findings import Finding

_COLORS = {"PASS": "32", "WARN": "33", "FAIL": "31", "SKIP": "2"}  # ANSI: green, yellow, red, dim
_ARROW = "-> "


def finding_lines(findings: Sequence[Finding], width: int, color: bool) -> list[str]:
    """A table of status, topic and text, each fix on the lines below; no line is wider than
    `width` unless a single word is."""
    topics = max((len(finding.topic) for finding in findings), default=0)
    indent = " " * (len("PASS") + topics + 4)
    room = max(20, width - len(indent))
    lines = []
    for finding in findings:
        status: str = finding.status
        if color:
            status = f"\033[{_COLORS[status]}m{status}\033[0m"
        text = _wrapped(finding.text, room)
        lines.append(f"{status}  {finding.topic:<{topics}}  {text[0]}")
        lines += [indent + line for line in text[1:]]
        if finding.fix:
            fix = _wrapped(finding.fix, room - len(_ARROW))
            lines.append(f"{indent}{_ARROW}{fix[0]}")
            lines += [f"{indent}{' ' * len(_ARROW)}{line}" for line in fix[1:]]
    return lines


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: what all of them together mean."""
    count = Counter(finding.status for finding in findings)
    if count["FAIL"]:
        return tell("{count} FAIL: no model runs here until that is mended.", count=count["FAIL"])
    if count["WARN"]:
        return tell(
            "Models run here; {count} WARN above say what would make it better.",
            count=count["WARN"],
        )
    return tell("Models run here; nothing needs fixing.")


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(told(text), width) or [""]
