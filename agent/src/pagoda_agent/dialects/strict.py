"""Reading a model's words so that nothing in them is dropped, bent or guessed."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pagoda_agent.base.errors import ActionError
from pagoda_agent.base.near import nearest
from pagoda_agent.dialects.space import Space
from pagoda_agent.input.actions import Action, Ask, Done, Point, check
from pagoda_agent.models.dialogue import Message, Parsed, Reply

MAX_ACTIONS = 20
"""Most actions of one reply: a model that does more without looking is lost."""
_MAX_NUMBER = 1e12
_ENDING = re.compile(r"^(DONE|FAILED|QUESTION):[ \t]*", re.MULTILINE)
_REQUIRED: Any = object()


def shown(value: object) -> str:
    """A value in an error message: as JSON, not longer than a line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def refuse_unfinished(reply: Reply) -> None:
    """Half a reply may look whole (`rm -rf /home` of `rm -rf /home/me/tmp`), so none is read."""
    if reply.finish_reason == "length":
        raise ActionError("Your reply was cut off because it was too long; write a shorter one.")
    if not reply.text.strip() and not reply.tool_calls:
        raise ActionError("Your reply is empty; reply with an action.")


def beyond_thinking(text: str) -> tuple[str, str]:
    """(thoughts, the rest) of a text that may begin with <think>...</think>."""
    thoughts, closed, rest = text.rpartition("</think>")
    if closed:
        return thoughts.replace("<think>", "").strip(), rest
    if "<think>" in text:
        raise ActionError("Your reply ends inside <think>; close it and then act.")
    return "", text


def gate(
    thought: str, actions: Iterable[Action], call_ids: Sequence[str] = (), **more: Any
) -> Parsed:
    """What every parser returns: each action checked, and none behind one that ends the turn."""
    actions = tuple(actions)
    if not actions:
        raise ActionError("There is no action in your reply.")
    if len(actions) > MAX_ACTIONS:
        raise ActionError(
            f"There are {len(actions)} actions in your reply; at most {MAX_ACTIONS} are allowed."
        )
    for position, action in enumerate(actions):
        check(action)
        if isinstance(action, Done) and len(actions) > 1:
            raise ActionError(
                "Your reply ends the task and acts as well. Act first, look at the result, and "
                "end the task in a reply of its own."
            )
        if isinstance(action, Ask) and position < len(actions) - 1:
            raise ActionError("Ask as the last thing in your reply: wait for the answer.")
    return Parsed(thought.strip(), actions, tuple(call_ids), **more)


def ending(text: str) -> tuple[str, Action] | None:
    """(thought, action) of a text that ends with `DONE:`, `FAILED:` or `QUESTION:` and words."""
    found = list(_ENDING.finditer(text))
    if not found:
        return None
    if len(found) > 1:
        raise ActionError("Write only one of DONE:, FAILED: and QUESTION:, and once.")
    words = text[found[0].end() :].strip()
    action: Action = Ask(words) if found[0][1] == "QUESTION" else Done(found[0][1] == "DONE", words)
    return text[: found[0].start()], action


ENDINGS = (
    "When the task is finished and the screen proves it, reply without calling the tool, with a "
    "line that begins with `DONE:` and what you found or did. If it cannot be done, write "
    "`FAILED:` and why. If you need something from the user, write `QUESTION:` and the question."
)


def numbered(outcomes: Sequence[str]) -> list[Message]:
    """How actions went, for models that are spoken to in plain text."""
    if not outcomes:
        return []
    if len(outcomes) == 1:
        return [Message("user", f"Result of your action: {outcomes[0]}")]
    lines = [f"{number}. {outcome}" for number, outcome in enumerate(outcomes, 1)]
    return [Message("user", "\n".join(["Results of your actions:", *lines]))]


def by_call(call_ids: Sequence[str], outcomes: Sequence[str], consented: bool) -> list[Message]:
    """How actions went, one message for each tool call (a call may hold several actions). What
    was said without a call, such as a question, is answered without one."""
    if not call_ids:
        return numbered(outcomes)
    texts: dict[str, list[str]] = {}
    for call_id, outcome in zip(call_ids, outcomes, strict=True):
        texts.setdefault(call_id, []).append(outcome)
    return [
        Message("tool", "\n".join(lines), tool_call_id=call_id, consented=consented)
        for call_id, lines in texts.items()
    ]


def read_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object, with no name in it twice. `what` names it in errors."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise ActionError(
            f"{what} is not valid JSON: {error.msg} at character {error.pos}, near {shown(near)}."
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ActionError):
            raise
        raise ActionError(f"{what} is not valid JSON that can be read here.") from error
    if not isinstance(value, dict):
        raise ActionError(f"{what} must be a JSON object, not {shown(value)}.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ActionError(f"The field {shown(twice)} is there twice.")
    return values


def one_of(what: str, value: object, allowed: Sequence[str]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    close = nearest(value, allowed) if isinstance(value, str) and len(value) < 40 else None
    hint = f"did you mean {close!r}? " if close else ""
    raise ActionError(f"There is no {what} {shown(value)}; {hint}Allowed: {', '.join(allowed)}.")


class Fields:
    """The fields of one action. Each is taken out as it is read; `close` refuses what is left.

    All raise ActionError, naming the action, the field, its value and what is allowed.
    """

    def __init__(self, action: str, values: Mapping[str, Any]):
        self._action = action
        self._left = dict(values)

    def has(self, name: str) -> bool:
        """Whether there is a value; null is none."""
        return self._left.get(name) is not None

    def text(self, name: str, default: str = _REQUIRED) -> str:
        return str(self._read(name, "a string", lambda value: isinstance(value, str), default))

    def number(self, name: str, default: float = _REQUIRED) -> float:
        return float(self._read(name, "a number", is_number, default))

    def whole(self, name: str, default: int = _REQUIRED) -> int:
        return int(self._read(name, "a whole number", _is_whole, default))

    def choice(self, name: str, allowed: Sequence[str], default: str = _REQUIRED) -> str:
        listed = f"one of {', '.join(allowed)}"
        return str(self._read(name, listed, lambda value: value in allowed, default))

    def texts(self, name: str, default: Sequence[str] = _REQUIRED) -> list[str]:
        return list(self._read(name, "a list of strings", _is_texts, default))

    def numbers(self, name: str, count: int) -> list[float]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and len(value) == count and all(map(is_number, value))

        return list(self._read(name, f"a list of {count} numbers", fits, _REQUIRED))

    def objects(self, name: str) -> list[dict[str, Any]]:
        return list(self._read(name, "a list of objects", _is_objects, _REQUIRED))

    def mapping(self, name: str) -> dict[str, Any]:
        return dict(self._read(name, "an object", lambda v: isinstance(v, dict), _REQUIRED))

    def point(self, name: str, space: Space, screen: tuple[int, int]) -> Point:
        x, y = self.numbers(name, 2)
        return self._on_screen(lambda: space.point(x, y, screen))

    def xy(self, space: Space, screen: tuple[int, int]) -> Point:
        """A position in two fields, `x` and `y`."""
        x, y = self.number("x"), self.number("y")
        return self._on_screen(lambda: space.point(x, y, screen))

    def place(self, name: str, space: Space, screen: tuple[int, int]) -> Point | None:
        """The position, or None (where the pointer is) if it is left out."""
        if not self.has(name):
            self._left.pop(name, None)
            return None
        return self.point(name, space, screen)

    def _on_screen(self, read: Callable[[], Point]) -> Point:
        try:
            return read()
        except ActionError as error:
            raise ActionError(f"In {self._action}, {error}") from None

    def close(self) -> None:
        extra = [name for name, value in self._left.items() if value is not None]
        if extra:
            raise ActionError(
                f"{self._action} has no field {shown(extra[0])}; leave it out "
                f"(its value was {shown(self._left[extra[0]])})."
            )

    def _read(self, name: str, what: str, fits: Callable[[Any], bool], default: Any) -> Any:
        value = self._left.pop(name, None)
        if value is None:
            if default is _REQUIRED:
                raise ActionError(f"{self._action} needs the field {name!r}: {what}.")
            return default
        if not fits(value):
            raise ActionError(f"{self._action}'s {name!r} must be {what}, not {shown(value)}.")
        return value


def is_number(value: object) -> bool:
    """A finite number of a size that can be reckoned with; JSON's true is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (
        abs(value) <= _MAX_NUMBER
        if isinstance(value, int)
        else (math.isfinite(value) and abs(value) <= _MAX_NUMBER)
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and is_number(value) and float(value) == int(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
