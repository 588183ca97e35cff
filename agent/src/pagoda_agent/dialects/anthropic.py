"""Anthropic's computer tools, by the version in their type.

Facts: the tools' parameter types in Anthropic's SDK; keys are named as xdotool does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.rules import limits
from pagoda_agent.dialects.space import Space
from pagoda_agent.dialects.strict import (
    ENDINGS,
    Fields,
    by_call,
    ending,
    gate,
    one_of,
    read_object,
    refuse_unfinished,
    shown,
)
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import (
    Action,
    Button,
    Click,
    CursorPosition,
    Drag,
    Key,
    Move,
    Press,
    Release,
    Screenshot,
    Scroll,
    Type,
    Wait,
    Zoom,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.models.dialogue import Message, Parsed, Reply

Version = Literal["20241022", "20250124", "20251124", "20260801"]
VERSIONS: tuple[Version, ...] = get_args(Version)
TOOLSET: Version = "20260801"
"""From here on each action is a tool of its own."""

_CLICKS: dict[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
_FIRST = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click",
          "middle_click", "double_click", "screenshot", "cursor_position")  # fmt: skip
_SECOND = (*_FIRST, "left_mouse_down", "left_mouse_up", "triple_click", "scroll", "hold_key",
           "wait")  # fmt: skip
_ACTIONS: dict[Version, tuple[str, ...]] = {
    "20241022": _FIRST,
    "20250124": _SECOND,
    "20251124": (*_SECOND, "zoom"),
    "20260801": (*_SECOND, "zoom"),
}
_DIRECTIONS = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}


@dataclass(frozen=True)
class Anthropic:
    version: Version = "20251124"
    name: str = "anthropic"

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        return f"{limits(capabilities)}- {ENDINGS}"

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        if self.version == TOOLSET:
            return [{"type": f"computer_toolset_{self.version}"}]
        width, height = screen
        tool: dict[str, Any] = {
            "type": f"computer_{self.version}",
            "name": "computer",
            "display_width_px": width,
            "display_height_px": height,
        }
        if self.version == "20251124":
            tool["enable_zoom"] = True
        return [tool]

    def parse(self, reply: Reply, screen: tuple[int, int]) -> Parsed:
        refuse_unfinished(reply)
        ended = ending(reply.text)
        if not reply.tool_calls:
            if ended is None:
                raise ActionError(f"There is no action in your reply. Call the tool. {ENDINGS}")
            return gate(ended[0], [ended[1]])
        if ended is not None:
            raise ActionError(
                "Your reply ends the turn and acts as well. Act first and look at the result."
            )
        actions = [self._action(call.name, call.arguments, screen) for call in reply.tool_calls]
        return gate(reply.text, actions, [call.id for call in reply.tool_calls])

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        return by_call(call_ids, outcomes, consented)

    def _action(self, tool: str, arguments: str, screen: tuple[int, int]) -> Action:
        values = read_object(arguments, "The tool's input")
        if self.version == TOOLSET:
            name = tool
        elif tool != "computer":
            raise ActionError(f"There is no tool {shown(tool)}; call 'computer'.")
        else:
            name = values.pop("action", None)
        name = one_of("action", name, _ACTIONS[self.version])
        fields = Fields(name, values)
        action = self._read(name, fields, screen)
        fields.close()
        return action

    def _read(self, name: str, fields: Fields, screen: tuple[int, int]) -> Action:
        if name in _CLICKS:
            return self._click(name, fields, screen)
        match name:
            case "key":
                repeat = fields.whole("repeat", 1) if self.version == TOOLSET else 1
                return Key(chord(fields.text("text")), repeat=repeat)
            case "hold_key":
                return Key(chord(fields.text("text")), hold=fields.number("duration"))
            case "type":
                return Type(fields.text("text"))
            case "mouse_move":
                return Move(fields.point("coordinate", Space.PIXELS, screen))
            case "left_click_drag":
                return self._drag(fields, screen)
            case "left_mouse_down":
                return Press(None)
            case "left_mouse_up":
                return Release(None)
            case "scroll":
                return self._scroll(fields, screen)
            case "wait":
                return Wait(fields.number("duration"))
            case "zoom":
                return _zoom(fields, screen)
            case "cursor_position":
                return CursorPosition()
        return Screenshot()

    def _click(self, name: str, fields: Fields, screen: tuple[int, int]) -> Click:
        button, count = _CLICKS[name]
        if self.version == "20241022":
            return Click(None, button, count)
        place = fields.place("coordinate", Space.PIXELS, screen)
        return Click(place, button, count, _held(fields))

    def _drag(self, fields: Fields, screen: tuple[int, int]) -> Drag:
        end = fields.point("coordinate", Space.PIXELS, screen)
        if self.version == "20241022":
            return Drag((end,))
        if self.version == TOOLSET:
            start = fields.point("start_coordinate", Space.PIXELS, screen)
            return Drag((start, end), modifiers=_held(fields))
        begin = fields.place("start_coordinate", Space.PIXELS, screen)
        path = (end,) if begin is None else (begin, end)
        return Drag(path, modifiers=_held(fields))

    def _scroll(self, fields: Fields, screen: tuple[int, int]) -> Scroll:
        dx, dy = _DIRECTIONS[fields.choice("scroll_direction", tuple(_DIRECTIONS))]
        amount = fields.whole("scroll_amount")
        if amount < 1:
            raise ActionError(f"scroll's 'scroll_amount' is {amount}; it must be 1 or more.")
        place = fields.place("coordinate", Space.PIXELS, screen)
        return Scroll(place, dx * amount, dy * amount, _held(fields))


def _held(fields: Fields) -> tuple[str, ...]:
    """Keys that are held meanwhile."""
    text = fields.text("text", "")
    return chord(text) if text else ()


def _zoom(fields: Fields, screen: tuple[int, int]) -> Zoom:
    x0, y0, x1, y1 = fields.numbers("region", 4)
    return Zoom(Space.PIXELS.corner(x0, y0, screen), Space.PIXELS.corner(x1, y1, screen))
