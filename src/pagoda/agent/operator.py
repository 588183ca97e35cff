"""One computer and the tasks that a model carries out on it, one at a time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pagoda.agent.control import Control, Limits, StateError
from pagoda.agent.dialogue import ChatModel
from pagoda.agent.drivers.base import Driver
from pagoda.agent.events import Events
from pagoda.agent.frame import Frame
from pagoda.agent.history import History, system_text
from pagoda.agent.journal import Journal, new_folder
from pagoda.agent.models.endpoint import Endpoint
from pagoda.agent.models.registry import make_model
from pagoda.agent.observe import Settle, settled
from pagoda.agent.profiles import dialect_of
from pagoda.agent.recorder import Recorder
from pagoda.agent.recover import Recovered, recover
from pagoda.agent.secrets import Secrets
from pagoda.agent.settings import Settings
from pagoda.agent.step import Stepper

# A preview needs no newer frame than this.
_PREVIEW_SECONDS = 0.2
MakeModel = Callable[[str, Endpoint], ChatModel]


@dataclass
class Operator:
    driver: Driver
    settings: Settings
    secrets: Secrets
    runs: Path
    """Folder of all journals."""
    settle: Settle = field(default_factory=Settle)
    make_model: MakeModel = make_model
    events: Events = field(default_factory=Events)

    def __post_init__(self) -> None:
        self.control: Control | None = None
        self.folder: Path | None = None
        """Of the current or last run."""
        self._seen: Frame | None = None
        self._looking = asyncio.Lock()
        self._starting = False

    @property
    def busy(self) -> bool:
        return self._starting or (self.control is not None and not self.control.state.over)

    async def start(self, task: str) -> Control:
        """Begin a task, with a conversation and a journal of its own.

        Raises StateError while another one goes on, or for an empty task; DriverError and
        ConfigError before anything was done.
        """
        if not task.strip():
            raise StateError("The task is empty.")
        return await self._begin(Recovered(task), new_folder(self.runs))

    async def resume(self, folder: Path) -> Control:
        """Go on with a run that was cut off, at its next step. Raises as `start`, JournalError for
        a journal that cannot be read, and StateError for a run that came to its end."""
        run = recover(folder)
        if run.over:
            raise StateError(f"That run is over: {run.over}.")
        return await self._begin(run, folder)

    async def reset(self) -> None:
        """End the task, if there is one, and forget it; its journal stays."""
        if self.control is not None:
            await self.control.cancel()
        self.control = self.folder = None
        self.events.clear()

    async def close(self) -> None:
        """End the task, let go of the computer. Harmless when repeated."""
        if self.control is not None:
            await self.control.cancel("The agent was closed.")
        await self.driver.close()

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
        self._starting = True
        try:
            stepper, control = await self._prepare(run, folder)
        finally:
            self._starting = False
        self.control, self.folder = control, folder
        event = "resumed" if run.number else "start"
        control.recorder.record(
            event, task=run.task, model=self.settings.model, profile=stepper.profile.name,
            driver=self.driver.name, run=folder.name,
        )  # fmt: skip
        control.start()
        return control

    async def _prepare(self, run: Recovered, folder: Path) -> tuple[Stepper, Control]:
        settings, secrets, driver = self.settings, self.secrets, self.driver
        profile = settings.model_profile(settings.model)
        dialect = dialect_of(profile)
        model = self.make_model(profile.api, settings.endpoint(settings.model))
        screen = (await settled(driver, self.settle)).scaled_size(profile.long_edge)
        instruct = partial(
            system_text, dialect, capabilities=driver.capabilities, prompt=settings.prompt,
            secret_names=secrets.names,
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
        recorder = Recorder(Journal(folder, secrets.redact), self.events)
        stepper = Stepper(
            driver, model, profile, dialect, history, settings.make_policy(secrets.names),
            settings.budget(run.spent), secrets, recorder, instruct, self.settle, run.number,
        )  # fmt: skip
        control = Control(
            recorder, stepper.step, driver.release_all, partial(_finish, model, recorder),
            stepper.budget, history.add_hint,
            Limits(settings.consent_seconds, settings.answer_seconds),
        )  # fmt: skip
        return stepper, control


async def _finish(model: ChatModel, recorder: Recorder) -> None:
    recorder.journal.close()
    await model.close()
