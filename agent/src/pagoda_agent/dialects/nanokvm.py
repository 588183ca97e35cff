"""The text commands of Sipeed's nanokvm_cua: a line each, `#` thoughts, `$` questions, `Done`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.rules import limits
from pagoda_agent.dialects.space import Space
from pagoda_agent.dialects.strict import (
    beyond_thinking,
    gate,
    numbered,
    one_of,
    refuse_unfinished,
    shown,
)
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import (
    Action,
    Ask,
    Click,
    Done,
    Drag,
    Key,
    Move,
    Point,
    Scroll,
    Type,
    Wait,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.models.dialogue import Message, Parsed, Reply

MAX_COMMANDS = 3
"""More in one reply is a model imagining the screens in between."""
# Ten digits are beyond every limit, and `int` refuses thousands of them in words of its own.
_NUMBER = re.compile(r"-?\d{1,10}(\.\d{1,20})?")
_FORMS = {
    "mouse": "mouse X Y B",
    "drag": "drag X0 Y0 X1 Y1",
    "keyboard": "keyboard KEYS",
    "typestr": "typestr TEXT",
    "backspace": "backspace N",
    "sleep": "sleep SECONDS",
}
_COMMANDS = tuple(_FORMS)


@dataclass(frozen=True)
class NanoKvm:
    space: Space = Space.THOUSAND
    """nanokvm_cua takes 0..1 and 0..1000 and cannot tell (1, 1) apart; here it is one of them."""
    name: str = "nanokvm"

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        return f"""{limits(capabilities)}- {self.space.told(screen)} 0 0 means where the pointer is.

Reply with lines of these kinds and nothing else:
# what you see and what you want to do, on one or more lines that begin with #
mouse X Y B: B is 0 move, 1 left click, 2 right click, 3 left double-click, 4 right double-click, \
5 wheel down, 6 wheel up (5 and 6 may be followed by a number of notches)
drag X0 Y0 X1 Y1: press the left button at the first position, release it at the second
keyboard KEYS: press keys together, such as ctrl+shift+t, enter or F5
typestr TEXT: type the rest of the line as it is
backspace N: delete N characters
sleep SECONDS
$ a question to the user, when you need a decision or a fact
Done: alone, when the picture proves that the task is finished

Write 1 or 2 commands in a reply, never more than {MAX_COMMANDS}."""

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        return []

    def parse(self, reply: Reply, screen: tuple[int, int]) -> Parsed:
        refuse_unfinished(reply)
        if reply.tool_calls:
            raise ActionError("Write commands as lines of text; there are no tools.")
        thinking, rest = beyond_thinking(reply.text)
        thoughts, actions = [thinking], list[Action]()
        for line in rest.split("\n"):
            line = line.removesuffix("\r")
            if not line.strip():
                continue
            if line.lstrip().startswith("#"):
                thoughts.append(line.lstrip().lstrip("#").strip())
            else:
                actions.append(self._command(line.lstrip(), screen))
        commands = [action for action in actions if not isinstance(action, Ask | Done)]
        if len(commands) > MAX_COMMANDS:
            raise ActionError(
                f"There are {len(commands)} commands in your reply; at most {MAX_COMMANDS} are "
                "allowed. Look at the screen in between."
            )
        return gate("\n".join(thoughts), actions)

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        return numbered(outcomes)

    def _command(self, line: str, screen: tuple[int, int]) -> Action:
        if line.startswith("$"):
            return Ask(line[1:].strip())
        if line.rstrip() == "Done":
            return Done()
        word, _, rest = line.partition(" ")
        match one_of("command", word.rstrip(), _COMMANDS):
            case "mouse":
                return self._mouse(line, screen)
            case "drag":
                x0, y0, x1, y1 = _numbers(line, rest, 4)
                return Drag((self._point(line, x0, y0, screen), self._point(line, x1, y1, screen)))
            case "keyboard":
                return Key(chord(rest.strip()))
            case "typestr":
                return Type(rest)
            case "backspace":
                return Key(("Backspace",), repeat=_whole(line, _numbers(line, rest, 1)[0]))
        return Wait(_numbers(line, rest, 1)[0])

    def _mouse(self, line: str, screen: tuple[int, int]) -> Action:
        words = line.split()[1:]
        wheel = len(words) in (3, 4) and words[2] in ("5", "6")
        x, y, kind, *count = _numbers(line, " ".join(words), len(words) if wheel else 3)
        at = None if x == y == 0 else self._point(line, x, y, screen)
        match kind:
            case 0:
                if at is None:
                    raise ActionError(f"In {shown(line)}, 0 0 is where the pointer is already.")
                return Move(at)
            case 1:
                return Click(at)
            case 2:
                return Click(at, "right")
            case 3:
                return Click(at, count=2)
            case 4:
                return Click(at, "right", count=2)
            case 5 | 6:
                turns = _whole(line, count[0]) if count else 1
                if turns < 1:
                    raise ActionError(f"In {shown(line)}, the notches must be 1 or more.")
                return Scroll(at, dy=turns if kind == 6 else -turns)
        raise ActionError(f"In {shown(line)}, the last number must be 0, 1, 2, 3, 4, 5 or 6.")

    def _point(self, line: str, x: float, y: float, screen: tuple[int, int]) -> Point:
        try:
            return self.space.point(x, y, screen)
        except ActionError as error:
            raise ActionError(f"In {shown(line)}, {error}") from None


def _numbers(line: str, text: str, count: int) -> list[float]:
    words = text.split()
    form = _FORMS[line.split()[0]]
    if len(words) != count:
        raise ActionError(f"{shown(line)} must have the form {form}.")
    for word in words:
        if not _NUMBER.fullmatch(word):
            raise ActionError(f"In {shown(line)}, {shown(word)} is no number; write {form}.")
    return [float(word) for word in words]


def _whole(line: str, value: float) -> int:
    if value != int(value):
        raise ActionError(f"In {shown(line)}, {value:g} must be a whole number.")
    return int(value)
