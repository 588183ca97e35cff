"""One computer and the tasks that a model carries out on it, one at a time."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from pagoda_agent.base.errors import NoSignalError
from pagoda_agent.consent.line import Memory
from pagoda_agent.consent.policy import Policy
from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.input.actions import HidReset, Power
from pagoda_agent.input.perform import perform
from pagoda_agent.models.chosen import Chosen, MakeModel, chosen_model
from pagoda_agent.models.dialogue import ChatModel
from pagoda_agent.models.profiles import dialect_of
from pagoda_agent.models.registry import make_model
from pagoda_agent.runs.journal import Journal, JournalError, new_folder, read
from pagoda_agent.runs.recorder import Recorder
from pagoda_agent.screen.frame import Frame
from pagoda_agent.screen.observe import Settle, settled
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings
from pagoda_agent.task.claim import claim, line_memory
from pagoda_agent.task.control import CANCELLED, PAUSED, Control, Limits, State, StateError
from pagoda_agent.task.events import Events
from pagoda_agent.task.history import History, system_text
from pagoda_agent.task.recover import Recovered, recover
from pagoda_agent.task.step import Stepper

# A preview needs no newer frame than this.
_PREVIEW_SECONDS = 0.2

_DID: Mapping[Power | HidReset, str] = {
    Power("press"): "I pressed the computer's power button.",
    Power("hold"): "I held the computer's power button down.",
    Power("reset"): "I pressed the computer's reset button.",
    HidReset(): "I plugged the computer's keyboard and mouse out and in.",
}


@dataclass
class Operator:
    driver: Driver
    settings: Settings
    secrets: Secrets
    runs: Path
    """Folder of all journals."""
    settle: Settle = field(default_factory=Settle)
    make_model: MakeModel = make_model
    make_driver: Callable[[str], Driver] = make_driver
    events: Events = field(default_factory=Events)

    def __post_init__(self) -> None:
        self.control: Control | None = None
        self.folder: Path | None = None
        """Folder of the current or last run."""
        self.began = 0
        """Number of the event with which that run began, or went on: those before are of its
        journal."""
        self._seen: Frame | None = None
        self._looking = asyncio.Lock()
        self._beginning: asyncio.Task[Control] | None = None
        """Prepares a task, for its caller."""
        self._moving = False
        """The computer changes."""
        self._claim: IO[str] | None = None
        self._memory = Memory()

    @property
    def busy(self) -> bool:
        beginning = self._beginning is not None and not self._beginning.done()
        running = self.control is not None and not self.control.state.over
        return beginning or running or self._moving

    async def open(self) -> None:
        """Claim the computer and connect to it. Raises DriverError, also where another agent
        operates it."""
        held = claim(self.driver.target)
        try:
            self._memory = line_memory(self.driver.target, self.secrets.redact)
            await self.driver.open()
        except BaseException:
            held.close()
            raise
        self._claim = held

    async def start(self, task: str) -> Control:
        """Begin a task, with a conversation and a journal of its own.

        Raises StateError while another one goes on, or for an empty task; DriverError,
        ConfigError and ModelError before anything was done.
        """
        if not task.strip():
            raise StateError("The task is empty.")
        return await self._begin(Recovered(task), new_folder(self.runs))

    async def resume(self, folder: Path) -> Control:
        """Go on with a run that was cut off or failed, at its next step. Raises as `start`,
        JournalError for a journal that cannot be read, and StateError for a run that is done or
        cancelled."""
        run = recover(folder)
        if run.over:
            raise StateError(f"That run is over: {run.over}.")
        return await self._begin(run, folder)

    async def pause(self, reason: str = PAUSED) -> None:
        """Pause the task, if there is one; when it is still being prepared, it does not begin."""
        await self._call_off()
        if self.control is not None:
            await self.control.pause(reason)

    async def cancel(self, reason: str = CANCELLED) -> None:
        """End the task, if there is one; when it is still being prepared, it does not begin."""
        await self._call_off()
        if self.control is not None:
            await self.control.cancel(reason)

    async def reset(self) -> None:
        """End the task, if there is one, and forget it; its journal stays."""
        await self.cancel()
        if self.control is None or self.control.state.over:  # else another has begun since
            self.control = self.folder = None
            self.events.clear()

    async def close(self) -> None:
        """End the task, let go of the computer. Harmless when repeated."""
        try:
            await self.cancel("The agent was closed.")
        finally:
            await self.driver.close()
            if self._claim is not None:
                self._claim.close()

    async def configure(self, settings: Settings) -> None:
        """Take other settings, which hold from the next task on. Another computer is taken when it
        was reached and has shown its screen (or says that it shows none), and the one of before is
        let go then.

        Raises StateError for another computer while a task goes on, ConfigError and DriverError
        for one that cannot be had; nothing has changed then.
        """
        if settings.driver != self.settings.driver:
            await self._change_to(settings.driver)
        self.settings = settings

    async def connect(self) -> None:
        """Take the settings' computer, whose driver lacked something when the agent started.
        Raises as `configure`."""
        await self._change_to(self.settings.driver)

    async def _change_to(self, url: str) -> None:
        if self.busy:
            raise StateError("A task is going on; the computer can be changed when it is over.")
        self._moving = True
        try:
            await self._move_to(self.make_driver(url))
        finally:
            self._moving = False

    async def _move_to(self, driver: Driver) -> None:
        # Another way to the same computer goes with the claim that is held.
        held = self._claim if driver.target == self.driver.target else claim(driver.target)
        try:
            await driver.open()
            with contextlib.suppress(NoSignalError):
                await driver.screenshot()
            memory = line_memory(driver.target, self.secrets.redact)
        except BaseException:
            await driver.close()
            if held is not None and held is not self._claim:
                held.close()
            raise
        async with self._looking:
            before, let_go = self.driver, self._claim
            self.driver, self._claim, self._seen = driver, held, None
            self._memory = memory
        await before.close()
        if let_go is not None and let_go is not held:
            let_go.close()

    async def use_buttons(self, action: Power | HidReset) -> None:
        """A person's hand at the computer: its power buttons, the plug of its keyboard and mouse.
        A task that is paused learns of it.

        Raises StateError while a task goes on, ActionError where the driver has no such thing,
        DriverError.
        """
        control = self.control
        paused = control is not None and control.state is State.PAUSED
        if self.busy and not paused:
            raise StateError("A task is going on; pause it first.")
        await perform(self.driver, action, self.secrets.reveal)
        if control is not None and paused:
            with contextlib.suppress(StateError):  # it was ended in the meantime
                await control.hint(_DID[action])

    def make_policy(self) -> Policy:
        """The policy that the settings ask for; it knows what was left on the computer's input
        line before."""
        self._memory.keep(self._memory.line.left_over())
        return replace(self.settings.make_policy(self.secrets.names), memory=self._memory)

    async def look(self) -> Frame:
        """The screen as it is now, or was a moment ago: several viewers cost one look."""
        async with self._looking:
            seen = self._seen
            if seen is None or time.monotonic() - seen.received_at > _PREVIEW_SECONDS:
                seen = self._seen = await self.driver.screenshot()
            return seen

    async def _begin(self, run: Recovered, folder: Path) -> Control:
        if self.busy:
            raise StateError("Another task is going on; cancel it or wait for its end.")
        beginning = self._beginning = asyncio.create_task(self._prepare_and_start(run, folder))
        try:
            await asyncio.wait([beginning])
        finally:
            beginning.cancel()  # else it would begin for a caller that is gone
        if beginning.cancelled():
            raise StateError("The task was stopped before it began.")
        return beginning.result()

    async def _call_off(self) -> None:
        """Let no task begin that is being prepared."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])

    async def _prepare_and_start(self, run: Recovered, folder: Path) -> Control:
        chosen = await chosen_model(self.settings, self.make_model)
        try:
            control = await self._prepare(run, folder, chosen)
        except BaseException:
            await chosen.model.close()
            raise
        self.control, self.folder = control, folder
        control.start()
        return control

    async def _prepare(self, run: Recovered, folder: Path, chosen: Chosen) -> Control:
        settings, secrets, driver = self.settings, self.secrets, self.driver
        name, profile, model = chosen
        dialect = dialect_of(profile)
        screen = profile.picture_size(await settled(driver, self.settle))
        instruct = partial(
            system_text, dialect, capabilities=driver.capabilities, prompt=settings.prompt,
            secret_names=secrets.names, own=settings.system_prompt,
        )  # fmt: skip
        history = History(
            dialect, instruct(screen), run.task, pictures=profile.pictures,
            prune_every=profile.prune_every, redact=secrets.redact_all, earlier=run.steps,
        )  # fmt: skip
        for hint in run.hints:
            history.add_hint(hint)
        if run.number:
            history.add_note("The agent was started anew; look before you go on.")
        self.events.clear()
        if run.number:
            for event in read(folder):
                self.events.emit(**event)
        self.began = self.events.next_number
        policy, budget = self.make_policy(), settings.budget(run.spent)
        recorder = Recorder(Journal(folder, secrets.redact), self.events)
        try:
            recorder.record(
                "resumed" if run.number else "start", task=run.task, model=name,
                profile=profile.name, driver=driver.name, run=folder.name, system=history.system,
            )  # fmt: skip
        except JournalError:
            recorder.journal.close()
            raise
        stepper = Stepper(
            driver, model, profile, dialect, history, policy, budget, secrets, recorder, instruct,
            self.settle, run.number,
        )  # fmt: skip
        return Control(
            recorder, stepper.step, stepper.let_go, partial(_finish, model, recorder),
            budget, history.add_hint,
            Limits(settings.consent_seconds, settings.answer_seconds),
        )  # fmt: skip


async def _finish(model: ChatModel, recorder: Recorder) -> None:
    recorder.journal.close()
    await model.close()
