"""OpenAI's computer tools: `computer` with batches of actions, and the earlier preview.

The API's `computer_call` items arrive as tool calls named `computer`, whose arguments are
`{"actions": [...], "pending_safety_checks": [...]}` (see models/openai_responses.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.rules import limits
from pagoda_agent.dialects.space import Space, notches
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
    Drag,
    Key,
    Move,
    Point,
    Screenshot,
    Scroll,
    Type,
    Wait,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.models.dialogue import Message, Parsed, Reply, ToolCall

WAIT_SECONDS = 2.0
"""`wait` names no time; OpenAI's own sample waits this long."""
_BUTTONS: dict[str, Button] = {
    "left": "left",
    "right": "right",
    "wheel": "middle",
    "back": "back",
    "forward": "forward",
}
_TYPES = ("click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type",
          "wait")  # fmt: skip


@dataclass(frozen=True)
class OpenAI:
    preview: bool = False
    """For the model computer-use-preview."""
    pixels_per_notch: int = 100
    name: str = "openai"

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        return f"{limits(capabilities)}- {ENDINGS}"

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        if not self.preview:
            return [{"type": "computer"}]
        width, height = screen
        return [
            {
                "type": "computer_use_preview",
                "display_width": width,
                "display_height": height,
                "environment": "linux",
            }
        ]

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
        actions: list[Action] = []
        ids: list[str] = []
        warnings: list[str] = []
        for call in reply.tool_calls:
            fresh, warned = self._call(call, screen)
            actions += fresh
            ids += [call.id] * len(fresh)
            warnings += warned
        return gate(reply.text, actions, ids, warnings=tuple(warnings))

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        return by_call(call_ids, outcomes, consented)

    def _call(self, call: ToolCall, screen: tuple[int, int]) -> tuple[list[Action], list[str]]:
        if call.name != "computer":
            raise ActionError(f"There is no tool {shown(call.name)}; call 'computer'.")
        fields = Fields("computer", read_object(call.arguments, "The tool's input"))
        actions = [self._action(values, screen) for values in fields.objects("actions")]
        if not actions:
            raise ActionError("The call of 'computer' has no actions.")
        warnings = []
        if fields.has("pending_safety_checks"):
            for check in fields.objects("pending_safety_checks"):
                words = check.get("message") or check.get("code") or "unnamed"
                warnings.append(f"Safety check by the model's provider: {words}")
        fields.close()
        return actions, warnings

    def _action(self, values: dict[str, Any], screen: tuple[int, int]) -> Action:
        values = dict(values)
        name = one_of("action", values.pop("type", None), _TYPES)
        fields = Fields(name, values)
        action = self._read(name, fields, screen)
        fields.close()
        return action

    def _read(self, name: str, fields: Fields, screen: tuple[int, int]) -> Action:
        match name:
            case "click":
                button = _BUTTONS[fields.choice("button", tuple(_BUTTONS))]
                return Click(_at(fields, screen), button, 1, _held(fields))
            case "double_click":
                return Click(_at(fields, screen), "left", 2, _held(fields))
            case "drag":
                corners = [Fields("drag's path", point) for point in fields.objects("path")]
                path = tuple(_at(corner, screen) for corner in corners)
                for corner in corners:
                    corner.close()
                if len(path) < 2:
                    raise ActionError("drag's 'path' must have 2 positions or more.")
                return Drag(path, modifiers=_held(fields))
            case "keypress":
                return Key(chord(fields.texts("keys")))
            case "move":
                if _held(fields):
                    raise ActionError("move cannot hold keys; leave out 'keys'.")
                return Move(_at(fields, screen))
            case "scroll":
                return self._scroll(fields, screen)
            case "type":
                return Type(fields.text("text"))
            case "wait":
                return Wait(WAIT_SECONDS)
        return Screenshot()

    def _scroll(self, fields: Fields, screen: tuple[int, int]) -> Scroll:
        """In the API positive pixels scroll down and right, as in web pages."""
        dx = notches(fields.number("scroll_x"), self.pixels_per_notch)
        dy = notches(fields.number("scroll_y"), self.pixels_per_notch)
        return Scroll(_at(fields, screen), dx, -dy, _held(fields))


def _at(fields: Fields, screen: tuple[int, int]) -> Point:
    return fields.xy(Space.PIXELS, screen)


def _held(fields: Fields) -> tuple[str, ...]:
    """Keys that are held meanwhile."""
    keys = fields.texts("keys", ())
    return chord(keys) if keys else ()
