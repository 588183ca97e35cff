"""Bytes that are known exactly, or lie between bounds."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Estimate:
    """Bytes: at least, likely, at most, and how they come about."""

    low: int
    likely: int
    high: int
    detail: str = ""

    @classmethod
    def exactly(cls, nbytes: int, detail: str = "") -> "Estimate":
        return cls(nbytes, nbytes, nbytes, detail)


@dataclass(frozen=True)
class Row:
    """A line of a ledger."""

    item: str
    estimate: Estimate

    @property
    def bytes(self) -> int | tuple[int, int]:
        """The number, or the least and the most that it may be."""
        estimate = self.estimate
        return estimate.likely if self.exactness == "exact" else (estimate.low, estimate.high)

    @property
    def exactness(self) -> Literal["exact", "estimate"]:
        return "exact" if self.estimate.low == self.estimate.high else "estimate"

    @property
    def detail(self) -> str:
        return self.estimate.detail
