"""Qwen's `computer_use` function, in <tool_call> text (as in Qwen's own cookbook) or as tool calls.

The function's name, its actions and their fields are those that the models were trained on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.rules import limits
from pagoda_agent.dialects.space import Space, notches
from pagoda_agent.dialects.strict import (
    Fields,
    beyond_thinking,
    by_call,
    gate,
    one_of,
    read_object,
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
    Move,
    Scroll,
    Type,
    Wait,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.models.dialogue import Message, Parsed, Reply

FUNCTION = "computer_use"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CLICKS: dict[str, tuple[Button, int]] = {
    "left_click": ("left", 1),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
}
# What each action does, for the model; `ask` is ours, the rest Qwen's.
_ACTIONS = {
    "key": "Press the keys in `keys` in this order and release them in reverse.",
    "type": "Type `text`; a newline presses Enter.",
    "mouse_move": "Move the pointer to `coordinate`.",
    "left_click": "Click at `coordinate`, or where the pointer is without it.",
    "left_click_drag": "Drag with the left button from the pointer's position to `coordinate`.",
    "right_click": "Click with the right button.",
    "middle_click": "Click with the middle button.",
    "double_click": "Double-click.",
    "triple_click": "Triple-click.",
    "scroll": "Turn the wheel by `pixels`: positive scrolls up, negative down.",
    "hscroll": "Scroll sideways by `pixels`: positive scrolls right, negative left.",
    "wait": "Wait for `time` seconds.",
    "ask": "Ask the user the question in `text`; use it when you need a decision or a fact.",
    "answer": "Finish the task with the answer in `text`.",
    "terminate": "Finish the task with `status`.",
}


@dataclass(frozen=True)
class Qwen:
    space: Space = Space.THOUSAND
    as_tools: bool = False
    """Speak through the API's tool calls; else the calls stand in the text."""
    pixels_per_notch: int = 100
    name: str = "qwen"

    def instructions(self, screen: tuple[int, int], capabilities: Capabilities) -> str:
        told = f"{limits(capabilities)}- {self.space.told(screen)}"
        if self.as_tools:
            return told
        tool = json.dumps(self._tool(screen, capabilities), ensure_ascii=False)
        return (
            f"{told}\n\n# Tools\n\nYou may call one or more functions to assist with the user "
            f"query.\n\nFunctions, within <tools></tools>:\n<tools>\n{tool}\n</tools>\n\n"
            "For each call write a JSON object with the function's name and arguments within "
            f'{_OPEN}{_CLOSE}:\n{_OPEN}\n{{"name": "{FUNCTION}", "arguments": {{...}}}}\n{_CLOSE}\n'
            "First say in a sentence what you see and what you will do, then write the call."
        )

    def tools(self, screen: tuple[int, int], capabilities: Capabilities) -> list[dict[str, Any]]:
        return [self._tool(screen, capabilities)] if self.as_tools else []

    def parse(self, reply: Reply, screen: tuple[int, int]) -> Parsed:
        refuse_unfinished(reply)
        thought, rest = beyond_thinking(reply.text)
        if reply.tool_calls:
            if _OPEN in rest:
                raise ActionError("Call the function either in the text or as a tool, not both.")
            actions = [
                self._action(call.name, read_object(call.arguments, "The arguments"), screen)
                for call in reply.tool_calls
            ]
            ids = [call.id for call in reply.tool_calls]
            return gate(f"{thought}\n{rest}", actions, ids)
        outside, calls = _split(rest)
        actions = [self._action(*_call(text), screen) for text in calls]
        # Calls in the text may come from a server that was given tools and did not find them.
        return gate(f"{thought}\n{outside}", actions)

    def result(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> list[Message]:
        return by_call(call_ids, outcomes, consented)

    def _action(self, function: str, arguments: dict[str, Any], screen: tuple[int, int]) -> Action:
        if function != FUNCTION:
            raise ActionError(f"There is no function {shown(function)}; call {FUNCTION!r}.")
        name = one_of("action", arguments.pop("action", None), tuple(_ACTIONS))
        fields = Fields(name, arguments)
        action = self._read(name, fields, screen)
        fields.close()
        return action

    def _read(self, name: str, fields: Fields, screen: tuple[int, int]) -> Action:
        match name:
            case "key":
                return Key(chord(fields.texts("keys")))
            case "type":
                return Type(fields.text("text"))
            case "mouse_move":
                return Move(fields.point("coordinate", self.space, screen))
            case "left_click_drag":
                return Drag((fields.point("coordinate", self.space, screen),))
            case "scroll" | "hscroll":
                amount = notches(fields.number("pixels"), self.pixels_per_notch)
                dx, dy = (amount, 0) if name == "hscroll" else (0, amount)
                place = fields.place("coordinate", self.space, screen)
                return Scroll(place, dx, dy, _held(fields))
            case "wait":
                return Wait(fields.number("time"))
            case "ask":
                return Ask(fields.text("text"))
            case "answer":
                return Done(True, fields.text("text"))
            case "terminate":
                status = fields.choice("status", ("success", "failure"))
                return Done(status == "success", fields.text("text", ""))
        button, count = _CLICKS[name]
        place = fields.place("coordinate", self.space, screen)
        return Click(place, button, count, _held(fields))

    def _tool(self, screen: tuple[int, int], capabilities: Capabilities) -> dict[str, Any]:
        actions = {
            name: what
            for name, what in _ACTIONS.items()
            if name != "hscroll" or capabilities.horizontal_wheel
        }
        listed = "\n".join(f"* `{name}`: {what}" for name, what in actions.items())
        x, y = self.space.most(screen)
        properties = {
            "action": {"type": "string", "enum": list(actions), "description": listed},
            "keys": {"type": "array", "items": {"type": "string"}, "description": "For `key`."},
            "text": {
                "type": "string",
                "description": "For `type`, `ask` and `answer`; for clicks and `scroll`, keys "
                "to hold meanwhile, such as `ctrl`.",
            },
            "coordinate": {
                "type": "array",
                "items": {"type": "number"},
                "minItems": 2,
                "maxItems": 2,
                "description": f"[x, y]: x from 0 to {x:g}, y from 0 to {y:g}.",
            },
            "pixels": {"type": "number", "description": "For scrolling."},
            "time": {"type": "number", "description": "Seconds, for `wait`."},
            "status": {"type": "string", "enum": ["success", "failure"]},
        }
        schema = {"type": "object", "properties": properties, "required": ["action"]}
        described = "Use the mouse and keyboard of the computer on whose screen you look."
        function = {"name": FUNCTION, "description": described, "parameters": schema}
        return {"type": "function", "function": function}


def _held(fields: Fields) -> tuple[str, ...]:
    """Keys that are held during a click or scroll."""
    text = fields.text("text", "")
    return chord(text) if text else ()


def _split(text: str) -> tuple[str, list[str]]:
    """(text outside of calls, each call's text)."""
    outside, *parts = text.split(_OPEN)
    said, calls = [outside], []
    for part in parts:
        call, closed, after = part.partition(_CLOSE)
        if not closed:
            raise ActionError(f"A {_OPEN} has no {_CLOSE}; write the whole call.")
        calls.append(call)
        said.append(after)
    if any(_CLOSE in piece for piece in said):
        raise ActionError(f"A {_CLOSE} has no {_OPEN} before it.")
    if not calls:
        raise ActionError(
            f"There is no action in your reply. Write one as {_OPEN}\n"
            f'{{"name": "{FUNCTION}", "arguments": {{"action": ...}}}}\n{_CLOSE}.'
        )
    return "\n".join(piece for piece in said if piece.strip()), calls


def _call(text: str) -> tuple[str, dict[str, Any]]:
    """The function and arguments of one call in the text."""
    fields = Fields("The tool call", read_object(text, "The tool call"))
    function = fields.text("name")
    arguments = fields.mapping("arguments")
    fields.close()
    return function, arguments
