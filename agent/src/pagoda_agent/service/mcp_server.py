"""The computer and the agent as tools of the Model Context Protocol, for other programs' models.

Positions are pixels of the screenshot that the tool returned. What wants a user's consent is
refused here, unless the person who started the server allowed that kind of action: nobody who
could be asked is at the other end.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from pagoda_agent.base.errors import ActionError, AgentError
from pagoda_agent.consent.policy import Category, Decision, Judgement, Policy
from pagoda_agent.consent.refused import take_back
from pagoda_agent.input import actions
from pagoda_agent.input.actions import (
    Button,
    Click,
    Drag,
    HidReset,
    InputAction,
    Key,
    Move,
    Point,
    Power,
    Scroll,
    Type,
)
from pagoda_agent.input.keys import chord
from pagoda_agent.input.perform import perform
from pagoda_agent.screen.observe import settled
from pagoda_agent.task.control import State
from pagoda_agent.task.events import Event
from pagoda_agent.task.operator import Operator
from pagoda_agent.version import __version__

Tool = Callable[..., Awaitable[Any]]
_INSTRUCTIONS = (
    "Operates one computer through its screen, keyboard and mouse. Take a screenshot first; "
    "positions are its pixels. run_task hands a whole task to the agent's own model."
)
_LONG_EDGE = 1280
_MOST_EVENTS = 50


@dataclass
class Tools:
    operator: Operator
    policy: Policy

    def __post_init__(self) -> None:
        self._size: tuple[int, int] | None = None
        self._acting = asyncio.Lock()

    async def screenshot(self) -> Image:
        """The screen as it is now."""
        async with self._acting:
            frame = await self.operator.driver.screenshot()
            self._size = frame.scaled_size(_LONG_EDGE)
            return Image(data=frame.encoded("JPEG", self._size), format="jpeg")

    async def move(self, x: int, y: int) -> str:
        """Move the pointer."""
        return await self._do(Move(self._point(x, y)))

    async def click(
        self, x: int, y: int, button: Button = "left", count: int = 1, keys: str = ""
    ) -> str:
        """Click; count 2 is a double click, keys ("ctrl+shift") are held meanwhile."""
        held = chord(keys) if keys else ()
        return await self._do(Click(self._point(x, y), button, count, held))

    async def drag(self, path: list[tuple[int, int]], button: Button = "left") -> str:
        """Press at the first position, move through the others, release at the last."""
        points = tuple(self._point(x, y) for x, y in path)
        return await self._do(Drag(points, button))

    async def scroll(self, x: int, y: int, up: int = 0, right: int = 0) -> str:
        """Turn the wheel by notches; negative is down and left."""
        return await self._do(Scroll(self._point(x, y), right, up))

    async def type_text(self, text: str) -> str:
        """Type text; line breaks are Enter, {{secret:NAME}} is a secret that the user has set."""
        return await self._do(Type(text))

    async def press_keys(self, keys: str, repeat: int = 1, hold_seconds: float = 0.0) -> str:
        """Press a chord such as ctrl+c, Return, alt+F4."""
        return await self._do(Key(chord(keys), repeat, hold_seconds))

    async def use_buttons(self, what: Literal["press", "hold", "reset", "replug"]) -> str:
        """The computer's power button (press, hold 5 s), its reset button, or its keyboard and
        mouse plugged out and in; through a KVM only, and where the user allows it."""
        return await self._do(HidReset() if what == "replug" else Power(what))

    async def run_task(self, task: str) -> str:
        """Give the agent a task of its own; `task_status` says how it goes."""
        await self.operator.start(task)
        return "Started."

    async def task_status(self) -> dict[str, object]:
        """State of the task, with its last events."""
        control = self.operator.control
        if control is None:
            return {"state": "idle"}
        request = control.consent_request
        return {
            "state": control.state, "reason": control.reason, "question": control.question,
            "consent": None if request is None else {"id": request.id, "reason": request.reason},
            "events": [_short(event) for event in self.operator.events.since(0)[-_MOST_EVENTS:]],
        }  # fmt: skip

    async def control_task(
        self, command: Literal["pause", "resume", "answer", "cancel"], text: str = ""
    ) -> str:
        """Pause it, resume it with a hint, answer its question, or cancel it."""
        if command == "pause":
            await self.operator.pause()
        elif command == "cancel":
            await self.operator.cancel()
        control = self.operator.control
        if control is None:
            raise ActionError("There is no task.")
        if command == "resume":
            await control.resume(text)
        elif command == "answer":
            await control.answer(text)
        return control.state

    def _point(self, x: int, y: int) -> Point:
        if self._size is None:
            raise ActionError("Take a screenshot first: positions are its pixels.")
        width, height = self._size
        if not (0 <= x < width and 0 <= y < height):
            raise ActionError(f"({x}, {y}) is off the screenshot, which has {width}x{height}.")
        return Point((x + 0.5) / width, (y + 0.5) / height)

    async def _do(self, action: InputAction) -> str:
        actions.check(action)
        driver = self.operator.driver
        async with self._acting:
            control = self.operator.control
            if self.operator.busy and (control is None or control.state is not State.PAUSED):
                raise ActionError("A task of the agent is going on; pause or cancel it first.")
            program = await driver.focused_program()
            judgement = self.policy.judge(action, program=program)
            if judgement.decision is not Decision.ALLOW:
                raise ActionError(await self._refusal(action, judgement))
            try:
                with self.policy.noting(action, program):
                    await perform(driver, action, self.operator.secrets.reveal)
            finally:
                await driver.release_all()
            frame = await settled(driver, self.operator.settle)
        if self._size is not None and frame.scaled_size(_LONG_EDGE) != self._size:
            self._size = None
            return "Done. The screen's size changed; take a new screenshot."
        return "Done."

    async def _refusal(self, action: InputAction, judgement: Judgement) -> str:
        assert judgement.category is not None, "who refuses says why"
        operator = self.operator
        left = await take_back(
            operator.driver, self.policy, operator.settle, action, judgement.category
        )
        return (
            f"Refused: {judgement.reason} It needs a person's consent; start the server with "
            f"--allow {judgement.category} where that is meant to be possible.{left}"
        )


def make_server(operator: Operator, allowed: Sequence[Category] = ()) -> MCPServer:
    """`allowed` are kinds of actions that need no consent."""
    policy = operator.make_policy()
    decisions = {**policy.decisions, **dict.fromkeys(allowed, Decision.ALLOW)}
    tools = Tools(operator, replace(policy, decisions=decisions))
    server = MCPServer("pagoda-agent", instructions=_INSTRUCTIONS, version=__version__)
    for tool in (
        tools.screenshot, tools.move, tools.click, tools.drag, tools.scroll, tools.type_text,
        tools.press_keys, tools.use_buttons, tools.run_task, tools.task_status, tools.control_task,
    ):  # fmt: skip
        server.add_tool(_told(tool))
    return server


def _told(tool: Tool) -> Tool:
    """The same tool, whose errors reach the caller in words; the SDK hides those of others."""

    @functools.wraps(tool)
    async def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except AgentError as error:
            raise ToolError(str(error)) from error

    return told


def _short(event: Event) -> Event:
    """Without what is long and is no news to the caller."""
    return {name: value for name, value in event.items() if name not in ("frame", "tool_calls")}
