"""What the doctor says: one line per fact that matters, and what to do about those that hurt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]


@dataclass(frozen=True)
class Finding:
    """One sentence about the machine. ValueError for a fault without a fix, or a fix without a
    fault."""

    topic: str
    status: Status
    """FAIL: no model runs. WARN: something is slower or smaller than it could be. SKIP: there is
    nothing to look at, which is no fault."""
    text: str
    fix: str = ""
    """A command or a sentence."""

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"{self.status!r} is no status")
        if (self.status in ("WARN", "FAIL")) != bool(self.fix):
            raise ValueError(f"{self.status} {self.topic}: a fix belongs to WARN and FAIL alone")


def failed(findings: Sequence[Finding]) -> bool:
    return any(finding.status == "FAIL" for finding in findings)
