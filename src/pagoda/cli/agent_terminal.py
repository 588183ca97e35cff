"""A task in a terminal: what happens, line by line; Ctrl-C pauses it."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from pagoda.agent.control import Control, State
from pagoda.agent.operator import Operator
from pagoda.cli.agent_lines import Lines


class Terminal:
    """Shows a task's events, and asks the person at the keyboard, if there is one."""

    def __init__(self, operator: Operator):
        self._operator = operator
        self._console = Console(highlight=False)
        self._asks = sys.stdin.isatty()
        self._lines = Lines()

    async def run(self, begin: Callable[[], Awaitable[Control]]) -> int:
        """0 where the task was done, 1 where not."""
        await self._operator.open()
        try:
            control = await begin()
            if not self._asks:
                # Nobody is there: what needs consent is refused, what is asked stays unanswered.
                control.limits.consent = control.limits.answer = 0.0
            showing = asyncio.create_task(self._show(control))
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, lambda: asyncio.ensure_future(self._interrupt(control))
            )
            await control.wait()
            await showing
        finally:
            await self._operator.close()
        if self._operator.folder is not None:
            self._say(f"The journal is in {self._operator.folder}", "dim")
        return 0 if control.state is State.DONE else 1

    async def _show(self, control: Control) -> None:
        async for event in self._operator.events.follow(self._operator.began):
            self._print(event)
            if event["event"] != "state":
                continue
            state = State(event["state"])
            if state.over:
                return
            if self._asks and state is State.WAITING_USER:
                control.answer(await self._ask(f"{event['reason']}\n> "))
            elif self._asks and state is State.WAITING_CONSENT:
                reply = await self._ask(f"{event['reason']} Allow it? [y/N] ")
                control.consent(event["id"], reply.strip().lower() in ("y", "yes"))

    async def _interrupt(self, control: Control) -> None:
        """The first Ctrl-C pauses; at the prompt that follows a second one ends the task."""
        if control.state.over or control.state is State.PAUSED or not self._asks:
            await control.cancel()
            return
        await control.pause()
        reply = await self._ask("Paused. A hint, Enter to go on, or q to stop: ")
        if control.state.over:
            return
        if reply.strip().lower() == "q":
            await control.cancel()
        else:
            control.resume(reply)

    async def _ask(self, prompt: str) -> str:
        try:
            return await asyncio.to_thread(input, prompt)
        except EOFError:
            return "q"

    def _print(self, event: dict[str, Any]) -> None:
        for text, style in self._lines.of(event):
            self._say(text, style)

    def _say(self, text: str, style: str) -> None:
        # As Text: what a model says is no markup, and control characters do not reach the terminal.
        shown = "".join(char for char in text if char.isprintable() or char == "\n")
        self._console.print(Text(shown, style=style), soft_wrap=True)
