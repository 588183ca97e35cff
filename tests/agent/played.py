"""An agent whose task people do things to, on a loop whose clock leaps; and what must hold then."""

import asyncio
import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from pagoda_agent.models.dialogue import Reply, Usage
from pagoda_agent.runs import journal as journals
from pagoda_agent.runs.journal import Journal, JournalError, read
from pagoda_agent.screen.observe import Settle
from pagoda_agent.secrets import Secrets
from pagoda_agent.service.app import Service
from pagoda_agent.service.gate import Gate
from pagoda_agent.settings import Settings
from pagoda_agent.task.control import State, StateError
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.virtual_time import run_virtually

AT_ONCE = Settle(0, 0, 0, 0, 0)
# Of the virtual clock, far beyond all that a test does; a question waits an hour.
PATIENCE = 20_000
FULL = "No space left on device."
STILL = (State.PAUSED, State.DONE, State.FAILED, State.CANCELLED)


class SlowComputer(FakeComputer):
    """Every event takes its time, so that a command may come amid any of them."""

    click_pause = 0.01

    def __init__(self):
        super().__init__((64, 36))
        self.typing_pause = 0.01
        self.open_now = True

    async def close(self):
        await super().close()
        self.open_now = False

    async def screenshot(self):
        await asyncio.sleep(0.02)
        return await super().screenshot()

    async def _send_move(self, to):
        await asyncio.sleep(0.001)
        await super()._send_move(to)

    async def _send_button(self, button, pressed):
        await asyncio.sleep(0.01)
        await super()._send_button(button, pressed)
        await asyncio.sleep(0.01)

    async def _send_key(self, code, pressed):
        await asyncio.sleep(0.01)
        await super()._send_key(code, pressed)
        await asyncio.sleep(0.01)


class SlowModel:
    def __init__(self, replies):
        self._replies = list(replies)
        self.told = []
        self.closed = 0

    async def complete(self, messages, tools=()):
        self.told.append("\n".join(message.text for message in messages))
        await asyncio.sleep(0.05)
        reply = self._replies.pop(0) if self._replies else "Done"
        return Reply(reply, usage=Usage(1000, 400, 20))

    async def close(self):
        self.closed += 1
        await asyncio.sleep(0.05)


@dataclass
class Play:
    """An agent, and people who do things to its task without waiting for each other."""

    replies: list[str]
    full: range = range(0)
    """Numbers of the journal's writes that fail."""
    runs: Path = Path("/nowhere")
    models: list[SlowModel] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    doing: list[asyncio.Task] = field(default_factory=list)
    ends: tuple[str, ...] = ("Cancelled by the user.", "The agent was closed.")
    """Why a task may be cancelled."""
    going: int = 0
    """Counts the commands after which the agent may act (again)."""
    quiet_from: int | None = None
    """Events that the computer had got when the agent said that it sends no more."""
    writes: int = 0
    failed_writes: int = 0

    def __post_init__(self):
        self.computer = SlowComputer()
        self.operator = Operator(
            self.computer,
            Settings(model="any", profile="nanokvm"),
            Secrets({}),
            self.runs,
            AT_ONCE,
            self.make_model,
        )
        clock = asyncio.get_running_loop().time
        # A page that leaves is missed at once, not after ten seconds.
        self.gate = Gate("127.0.0.1", 1, lambda: 1000 * clock())
        service = Service(self.operator, self.gate, self.runs, lambda: None, exits_with_page=False)
        self.watcher = asyncio.create_task(service._watch_controller())

    def make_model(self, api, endpoint):
        self.models.append(SlowModel(self.replies))
        return self.models[-1]

    def write(self, write, journal, event, **fields):
        self.writes += 1
        if journal not in self.journals:
            self.journals.append(journal)
        if self.writes - 1 in self.full:
            self.failed_writes += 1
            raise JournalError(FULL)
        return write(journal, event, **fields)

    @property
    def control(self):
        return self.operator.control

    def do(self, command):
        self.check_quiet()
        self.doing.append(asyncio.create_task(getattr(self, f"_{command}")()))

    async def _start(self):
        if self.operator.busy:
            return
        self._goes_on()
        with contextlib.suppress(StateError, JournalError):
            await self.operator.start("do it")

    async def _pause(self):
        await self._stopping(self.operator.pause())

    async def _cancel(self):
        await self._stopping(self.operator.cancel())

    async def _reset(self):
        await self._stopping(self.operator.reset())

    async def _leave(self):
        """The page goes; its watcher pauses the task."""
        self.gate.enter(self.gate.token)

    async def _resume(self):
        if self.control is not None:
            self._goes_on()
            with contextlib.suppress(StateError, JournalError):
                await self.control.resume("go on")

    async def _hint(self):
        if self.control is not None:
            with contextlib.suppress(StateError, JournalError):
                await self.control.hint("look to the left")

    async def _answer(self):
        if self.control is not None:
            with contextlib.suppress(StateError):
                await self.control.answer("the blue one")

    async def _allow(self, allow=True):
        request = self.control and self.control.consent_request
        if request:
            with contextlib.suppress(StateError):
                await self.control.consent(request.id, allow)

    async def _deny(self):
        await self._allow(False)

    def _goes_on(self):
        self.check_quiet()
        self.going, self.quiet_from = self.going + 1, None

    async def _stopping(self, command):
        going = self.going
        await command
        if going == self.going:
            assert self.computer.held == ()
            assert self.control is None or self.control.state in STILL
            self.quiet_from = len(self.computer.log)

    def check_quiet(self):
        sent = self.computer.log[self.quiet_from :] if self.quiet_from is not None else []
        assert sent == [], "the agent had said that nothing more is sent"

    async def settle_all(self):
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self.doing)

    async def let_it_end(self):
        """A person goes on with the task and answers nothing, until it is over."""
        await self.settle_all()
        async with asyncio.timeout(PATIENCE):
            while self.operator.busy:
                if self.control.state is State.PAUSED:
                    await self._resume()
                await asyncio.sleep(1)

    async def close(self):
        await self._stopping(self.operator.close())
        await self.settle_all()
        await asyncio.sleep(1000)
        self.check_quiet()
        assert not self.watcher.done(), "what watches the page died"
        assert not self.computer.open_now and self.computer.held == ()
        assert [model.closed for model in self.models] == [1] * len(self.models)
        assert all(journal._file.closed for journal in self.journals)
        if self.control is not None:
            self.check_state(self.control.state, self.control.reason)

    def check_state(self, state, reason):
        if state is State.FAILED:
            assert self.failed_writes and reason == FULL
        elif state is State.CANCELLED:
            assert reason in self.ends
        else:
            assert state is State.DONE
        if not self.failed_writes:
            assert list(read(self.operator.folder))[-1]["state"] == state


def play(scene, replies, full=range(0)):
    """A scene on a loop of its own; in the end nothing is left open, held or undone."""

    async def main():
        part = Play(replies, full, Path(folder))
        write = Journal.write
        with (
            mock.patch.object(journals.os, "fsync"),
            mock.patch.object(
                Journal, "write", lambda journal, event, **fields: part.write(
                    write, journal, event, **fields
                )
            ),
        ):  # fmt: skip
            await part._start()
            await scene(part)
            await part.close()
            part.watcher.cancel()
            others = asyncio.all_tasks() - {asyncio.current_task(), part.watcher}
            assert not others, "a task was left behind"
        return part

    with tempfile.TemporaryDirectory() as folder:
        part = run_virtually(main())
        for run in Path(folder).iterdir():
            list(read(run))  # whole lines only
    return part
