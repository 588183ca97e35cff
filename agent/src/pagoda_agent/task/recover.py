"""A run that ended in the middle, as far as its journal knows it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pagoda_agent.runs.journal import JournalError, read
from pagoda_agent.task.budget import Spent


@dataclass
class Recovered:
    """What a new process needs to go on at the next step."""

    task: str
    hints: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    """A line for each step: what the model said, and how its actions went."""
    number: int = 0
    """Number of the last step that began."""
    spent: Spent = field(default_factory=Spent)
    over: str = ""
    """The state in which the run ended for good, if it did."""


def recover(folder: Path) -> Recovered:
    """Read a run's journal. An action that had begun when the run ended is not repeated: the model
    is told that it may be done, and looks. Raises JournalError for a journal without a task."""
    run: Recovered | None = None
    said = ""
    results: dict[int, str] = {}
    for event in read(folder):
        if event["event"] == "start":
            run = Recovered(str(event["task"]))
        if run is None:
            continue
        match event:
            case {"event": "step", "step": int(number)}:
                _close(run, said, results)
                said, results, run.number = "", {}, number
            case {"event": "reply", "text": str(text), "tool_calls": list(calls)}:
                said = " ".join([text, *(f"{call['name']} {call['arguments']}" for call in calls)])
                run.spent = msgspec.convert(event["spent"], Spent)
            case {"event": "acting", "index": int(index)}:
                results[index] = "The agent was cut off here; it may be done or not."
            case {"event": "result", "index": int(index), "text": str(text)}:
                results[index] = text
            case {"event": "hint" | "answer", "text": str(text)}:
                run.hints.append(text)
            case {"event": "state", "state": str(state)}:
                # One that failed, at a cap or for want of its model, may go on.
                run.over = state if state in ("done", "cancelled") else ""
    if run is None:
        raise JournalError(f"The journal in {folder} has no task.")
    _close(run, said, results)
    return run


def _close(run: Recovered, said: str, results: dict[int, Any]) -> None:
    if said:
        went = "; ".join(results[index] for index in sorted(results)) or "nothing was carried out"
        run.steps.append(f"{run.number}. {' '.join(said.split())[:400]} => {went[:200]}")
