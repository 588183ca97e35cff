"""What happens in a task, as lines of a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pagoda_agent.base.printable import escaped
from pagoda_agent.cli.name import command
from pagoda_agent.input.describe import describe
from pagoda_agent.task.control import Consent, State

Line = tuple[str, str]
"""A text, and its style."""
_STYLES = {State.DONE: "green", State.FAILED: "red", State.CANCELLED: "yellow"}
_MOST = 400
"""Characters of a task, or of a reply that was not understood."""


class Lines:
    """The terminal's lines for one task's events, in their order."""

    def __init__(self) -> None:
        self._size: Sequence[int] = (1, 1)
        self._reply = ""
        self._advised = False

    def of(self, event: Mapping[str, Any]) -> Iterator[Line]:
        match event:
            case {"event": "start" | "resumed", "task": task, "model": model, "driver": driver}:
                yield f"{_short(task)} ({model} through {driver})", "bold"
            case {"event": "step", "frame": {"size": size}}:
                self._size = size
            case {"event": "reply", "text": text, "tool_calls": calls}:
                called = (f"{call['name']} {call['arguments']}" for call in calls)
                self._reply = " ".join([text, *called])
            case {"event": "actions", "step": number, "thought": thought, "actions": actions}:
                yield f"{number:>3} {thought.strip()}", ""
                for action in actions:
                    yield f"    {describe(action, self._size)}", "cyan"
            case {"event": "result", "text": text} if text != "Done.":
                yield f"    {text}", "yellow"
            case {"event": "not understood", "reason": reason}:
                yield from self._misunderstood(reason)
            case {"event": "consent", "verdict": Consent.TIMEOUT}:
                yield "Nobody answered in time; it is not done.", "yellow"
            case {"event": "state", "state": state, "reason": reason} if State(state).over:
                yield (f"{state}: {reason}" if reason else state), _STYLES[State(state)]

    def _misunderstood(self, reason: str) -> Iterator[Line]:
        yield f"    not understood: {reason}", "yellow"
        yield f"    the reply was: {escaped(_short(self._reply))}", "yellow"
        if not self._advised:
            self._advised = True
            yield (
                (
                    "    If all its replies are like this, the model wants another --profile; "
                    f"`{command()} calibrate` shows which fits."
                ),
                "yellow",
            )


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}... ({len(text):,} characters)"
