"""A task in a terminal: what happens, line by line; Ctrl-C pauses it."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from pagoda_agent.base import env
from pagoda_agent.base.printable import for_terminal
from pagoda_agent.cli.keyboard import Keyboard
from pagoda_agent.cli.lines import Lines
from pagoda_agent.cli.name import command
from pagoda_agent.runs.journal import JournalError
from pagoda_agent.task.control import Control, State, StateError
from pagoda_agent.task.operator import Operator
from pagoda_agent.words import told

# ECMA-48, "select graphic rendition".
_COLOURS = {
    "": "",
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


class Terminal:
    """Shows a task's events, and asks the person at the keyboard, if there is one."""

    def __init__(self, operator: Operator):
        self._operator = operator
        self._lines = Lines()
        self._keyboard = Keyboard()
        self._question: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._pausing = False

    async def run(self, begin: Callable[[], Awaitable[Control]]) -> int:
        """0 where the task was done, 1 where not."""
        await self._operator.open()
        try:
            control = await begin()
            if not self._keyboard.there:
                # What needs consent is not done, what is asked stays unanswered.
                control.limits.consent = control.limits.answer = 0.0
            showing = asyncio.create_task(self._show(control))
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGINT, lambda: asyncio.ensure_future(self._interrupt(control))
            )
            await control.wait()
            await showing
        finally:
            self._keyboard.close()
            await self._operator.close()
        folder = self._operator.folder
        if folder is not None:
            self._say(f"The journal is in {folder}", "dim")
            if control.state is State.FAILED:
                self._say(f"`{command()} resume {folder.name}` goes on with it.", "dim")
        return 0 if control.state is State.DONE else 1

    async def _show(self, control: Control) -> None:
        async for event in self._operator.events.follow(self._operator.began):
            # Whatever happens next, the question of before is settled, also without an answer.
            await self._end_question()
            self._print(event)
            if event["event"] != "state":
                continue
            state = State(event["state"])
            if state.over:
                return
            if self._keyboard.there and state is not State.RUNNING:
                self._question = asyncio.create_task(self._ask(control, state, event))

    async def _end_question(self) -> None:
        if self._question is not None:
            self._question.cancel()
            await asyncio.wait([self._question])
            self._question = None

    async def _interrupt(self, control: Control) -> None:
        """The first Ctrl-C pauses, the second one ends the task."""
        if control.state is State.PAUSED or self._pausing or not self._keyboard.there:
            await control.cancel()
            return
        self._pausing = True
        await control.pause()
        self._pausing = False

    async def _ask(self, control: Control, state: State, event: dict[str, Any]) -> None:
        """Until there is an answer that could be written down."""
        answered = False
        # Answered in the moment in which the task went on without: too late, as the screen says.
        with contextlib.suppress(StateError):
            while not answered:
                try:
                    await self._ask_once(control, state, event)
                    answered = True
                except JournalError as error:
                    self._say(str(error), "red")

    async def _ask_once(self, control: Control, state: State, event: dict[str, Any]) -> None:
        reason = event["reason"]
        match state:
            case State.WAITING_USER:
                await control.answer(await self._keyboard.ask(f"{reason}\n> ") or "")
            case State.WAITING_CONSENT:
                await self._ask_consent(control, event)
            case State.PAUSED:
                hint = await self._keyboard.ask(f"{reason} A hint, Enter to go on, or q to stop: ")
                if hint is None or hint.strip().lower() == "q":
                    # Not awaited: the end takes back all questions, this one too.
                    self._stopping = asyncio.create_task(control.cancel())
                else:
                    await control.resume(hint)

    async def _ask_consent(self, control: Control, event: dict[str, Any]) -> None:
        offer = event["offer"]
        choices = f"{offer}\nAllow it? [y/N, a: for this task] " if offer else "Allow it? [y/N] "
        reply = await self._keyboard.ask(f"{event['reason']} {choices}")
        chosen = (reply or "").strip().lower()
        lasting = bool(offer) and chosen == "a"
        await control.consent(event["id"], lasting or chosen in ("y", "yes"), lasting)

    def _print(self, event: dict[str, Any]) -> None:
        for text, style in self._lines.of(event):
            self._say(text, style)
        asks = event["event"] == "state" and event["state"] == State.WAITING_USER
        if asks and not self._keyboard.there:
            self._say(f"    asks: {event['reason']}", "yellow")

    def _say(self, text: str, style: str) -> None:
        text = for_terminal(told(text))
        colour = _COLOURS[style] if sys.stdout.isatty() and not env.get("NO_COLOR") else ""
        print(f"\x1b[{colour}m{text}\x1b[0m" if colour else text, flush=True)
