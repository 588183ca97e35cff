"""UI-TARS: `Thought: ...`, then `Action: click(point='<point>x y</point>')`.

Version 1.0 writes boxes in 0..1000, 1.5 points or boxes in pixels of the resized picture.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.calls import Call, read_calls
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
    Button,
    Click,
    Done,
    Drag,
    Key,
    Point,
    Scroll,
    Type,
    Wait,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.models.dialogue import Message, Parsed, Reply

WAIT_SECONDS = 5.0
"""What `wait()` means in the model's own instructions."""
SCROLL_NOTCHES = 5
"""`scroll` names no amount; UI-TARS's own runner turns the wheel by 5."""
_CLICKS: dict[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "left_double": ("left", 2),
    "right_single": ("right", 1),
}
_DIRECTIONS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
_FUNCTIONS = (*_CLICKS, "drag", "hotkey", "type", "scroll", "wait", "finished", "call_user")
_WRAPPED = re.compile(
    r"<point>(?P<point>.*)</point>|<bbox>(?P<bbox>.*)</bbox>"
    r"|<\|box_start\|>(?P<box>.*)<\|box_end\|>",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?\d{1,10}(\.\d{1,20})?")
_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE)


@dataclass(frozen=True)
class UiTars:
    space: Space = Space.RESIZED
    name: str = "uitars"

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        sideways = ", left or right" if capabilities.horizontal_wheel else ""
        return f"""{limits(capabilities)}- {self.space.told(screen)}

Reply in this form:
Thought: what you see and what you want to do
Action: one of the actions below

click(point='<point>x y</point>')
left_double(point='<point>x y</point>')
right_single(point='<point>x y</point>')
drag(start_point='<point>x y</point>', end_point='<point>x y</point>')
hotkey(key='ctrl c') presses keys together
type(content='...') types; write \\' for ', \\" for ", \\\\ for \\ and \\n for Enter
scroll(point='<point>x y</point>', direction='down') up or down{sideways}
wait() waits for 5 seconds
call_user(content='...') asks the user
finished(content='...') ends the task when the picture proves that it is done"""

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        return []

    def parse(self, reply: Reply, screen: tuple[int, int]) -> Parsed:
        refuse_unfinished(reply)
        if reply.tool_calls:
            raise ActionError("Write `Action:` and an action as text; there are no tools.")
        thinking, rest = beyond_thinking(reply.text)
        begin = _ACTION.search(rest)
        if begin is None:
            raise ActionError(
                "There is no `Action:` in your reply. Write `Thought: ...` and, on a line of its "
                "own, `Action: click(point='<point>x y</point>')` or another action."
            )
        thought = re.sub(r"^\s*Thought:", "", rest[: begin.start()]).strip()
        actions = [self._action(call, thought, screen) for call in read_calls(rest[begin.end() :])]
        return gate(f"{thinking}\n{thought}", actions)

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        return numbered(outcomes)

    def _action(self, call: Call, thought: str, screen: tuple[int, int]) -> Action:
        name = one_of("action", call.name, _FUNCTIONS)
        action = self._read(name, call, thought, screen)
        call.close()
        return action

    def _read(self, name: str, call: Call, thought: str, screen: tuple[int, int]) -> Action:
        match name:
            case "drag":
                start = self._point(call.take("start_point", "start_box"), screen)
                return Drag((start, self._point(call.take("end_point", "end_box"), screen)))
            case "hotkey":
                return Key(chord(call.take("key")))
            case "type":
                return Type(call.take("content"))
            case "scroll":
                direction = call.take("direction")
                dx, dy = _DIRECTIONS[one_of("direction", direction, tuple(_DIRECTIONS))]
                box = call.take("point", "start_box", default="")
                at = self._point(box, screen) if box else None
                return Scroll(at, dx * SCROLL_NOTCHES, dy * SCROLL_NOTCHES)
            case "wait":
                return Wait(WAIT_SECONDS)
            case "finished":
                return Done(True, call.take("content", default=""))
            case "call_user":
                question = call.take("content", default="")
                return Ask(question or thought or "The model needs your help.")
        button, count = _CLICKS[name]
        return Click(self._point(call.take("point", "start_box"), screen), button, count)

    def _point(self, text: str, screen: tuple[int, int]) -> Point:
        """The position in `<point>x y</point>` or `(x,y)`, or the middle of a box."""
        wrapped = _WRAPPED.fullmatch(text.strip())
        inner = next(filter(None, wrapped.groups()), "") if wrapped else text
        inner = inner.strip()
        for opened, closed in ("()", "[]"):
            if inner.startswith(opened) and inner.endswith(closed):
                inner = inner[1:-1]
        words = inner.replace(",", " ").split()
        if len(words) not in (2, 4) or not all(map(_NUMBER.fullmatch, words)):
            raise ActionError(
                f"{shown(text)} is no position; write '<point>x y</point>' with two numbers."
            )
        values = [float(word) for word in words]
        corners = [
            self.space.point(x, y, screen) for x, y in zip(values[::2], values[1::2], strict=True)
        ]
        xs, ys = zip(*corners, strict=True)
        return Point(sum(xs) / len(xs), sum(ys) / len(ys))
