"""What a start-up chose, what it cost in seconds and bytes, and what was predicted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pagoda.base.units import format_bytes, format_seconds
from pagoda.planner.reason import Reason
from pagoda.planner.resolve import Resolution


@dataclass
class Ledger:
    """Filled while the engine starts; its rows travel in `EngineReady.ledger`."""

    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase, in order; they add up to the time from launch to ready."""
    predicted: dict[str, int] = field(default_factory=dict)
    """Bytes by item."""
    details: dict[str, str] = field(default_factory=dict)
    """How each prediction comes about."""
    measured: dict[str, int] = field(default_factory=dict)
    """Bytes by item, for the items that can be measured."""
    choices: list[Reason] = field(default_factory=list)
    kv_tokens: int = 0
    max_model_len: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of the block under `name`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self.phases[name] = self.phases.get(name, 0.0) + spent

    def plan(self, made: Resolution) -> None:
        plan = made.plan
        for row in (*plan.rows(), *plan.host_rows()):
            self.predicted[str(row["item"])] = row["bytes"]
            self.details[str(row["item"])] = str(row["detail"])
        self.choices = [_plain(reason) for reason in made.reasons]
        self.kv_tokens = plan.kv_tokens
        self.max_model_len = made.config.model.max_model_len

    def replan(self, made: Resolution) -> None:
        """As `plan`, once a step was measured; what was predicted for it stays."""
        predicted = self.predicted["activations"]
        self.plan(made)
        self.predicted["activations"] = predicted

    @property
    def concurrency(self) -> float:
        """Requests of full length that the KV pool holds at once."""
        return self.kv_tokens / max(1, self.max_model_len)

    def rows(self) -> list[dict[str, Any]]:
        """Rows of kind `phase` (seconds), `memory` (bytes), `choice` and `capacity`."""
        rows: list[dict[str, Any]] = [
            {"kind": "phase", "name": name, "seconds": round(seconds, 4)}
            for name, seconds in self.phases.items()
        ]
        rows += [
            {
                "kind": "memory", "name": name, "predicted": predicted,
                "measured": self.measured.get(name), "detail": self.details[name],
            }
            for name, predicted in self.predicted.items()
        ]  # fmt: skip
        rows += [
            {"kind": "choice", "name": choice.field, "value": choice.value, "why": choice.why}
            for choice in self.choices
        ]
        rows.append(
            {
                "kind": "capacity", "kv_tokens": self.kv_tokens,
                "max_model_len": self.max_model_len, "max_concurrency": round(self.concurrency, 2),
            }
        )  # fmt: skip
        return rows

    def lines(self) -> list[str]:
        """The ledger for the log, a line each."""
        lines = [f"{c.field} = {_show(c.field, c.value)} ({c.why})" for c in self.choices]
        lines.append(f"{'memory':<14}{'predicted':>12}{'measured':>12}")
        for name, predicted in self.predicted.items():
            measured = self.measured.get(name)
            shown = "-" if measured is None else format_bytes(measured)
            lines.append(
                f"  {name:<12}{format_bytes(predicted):>12}{shown:>12}  {self.details[name]}"
            )
        spent = ", ".join(f"{name} {format_seconds(sec)}" for name, sec in self.phases.items())
        lines.append(f"start-up took {format_seconds(sum(self.phases.values()))}: {spent}")
        if self.kv_tokens:
            lines.append(
                f"KV cache size: {self.kv_tokens:,} tokens, Maximum concurrency for "
                f"{self.max_model_len:,} tokens per request: {self.concurrency:.2f}x"
            )
        return lines


def _show(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(reason: Reason) -> Reason:
    """With texts alone, for the messages between processes."""
    value = str(reason.value) if isinstance(reason.value, str) else reason.value
    return Reason(reason.field, value, str(reason.why))
