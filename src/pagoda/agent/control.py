"""The states of a task, and what a user may do in each: the one place that decides."""

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from pagoda.agent.actions import Action, Done, to_json
from pagoda.agent.budget import Budget
from pagoda.agent.policy import Category
from pagoda.agent.reasons import Reason
from pagoda.agent.recorder import Recorder
from pagoda.base.errors import PagodaError
from pagoda.base.log import get_logger

log = get_logger(__name__)


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    WAITING_USER = "waiting_user"
    """The model asked something."""
    WAITING_CONSENT = "waiting_consent"
    """An action wants the user's consent."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self in (State.DONE, State.FAILED, State.CANCELLED)


class Consent(StrEnum):
    """How a request for consent ended."""

    ALLOW = "allow"
    DENY = "deny"
    TIMEOUT = "timeout"
    NOBODY = "nobody"
    """There was nobody to ask."""


class PauseRequest(Exception):  # noqa: N818 - no error
    """Raised by a step that should not go on before the user says so."""


class StateError(PagodaError):
    """What was asked for has no meaning in the task's state; nothing happened."""


@dataclass(frozen=True)
class ConsentRequest:
    id: int
    action: Action
    reason: str


@dataclass
class Limits:
    """Seconds; 0 where nobody is there."""

    consent: float = 120.0
    """An action that nobody allowed by then is refused."""
    answer: float = 3600.0


Step = Callable[["Control"], Awaitable[Done | None]]


@dataclass
class Control:
    """One task. `step` is called again and again, until it returns how the task ended.

    A pause cancels the step at once: a reply that comes later is not acted on, typing stops, and
    `release` lifts what is held down.
    """

    recorder: Recorder
    step: Step
    release: Callable[[], Awaitable[None]]
    finish: Callable[[], Awaitable[None]]
    """At the end of the task, behind the last `release`."""
    budget: Budget
    """Its time stands still while the task waits for the user."""
    note: Callable[[str], None]
    """Takes a hint of the user to the next request."""
    limits: Limits = field(default_factory=Limits)
    state: State = State.RUNNING
    reason: str = ""
    """Why it is in this state, in a sentence; at the end the answer or the error."""
    consent_request: ConsentRequest | None = None
    question: str = ""

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._stepping: asyncio.Future[Done | None] | None = None
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._reply: asyncio.Future[str] | None = None
        self._consents = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agent")

    async def wait(self) -> None:
        """Until the task is over."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def pause(self, reason: str = "Paused by the user.") -> None:
        """Stop at once, whatever is going on; returns when nothing more is sent."""
        if self.state.over or self.state is State.PAUSED:
            return
        self._go_on.clear()
        self._enter(State.PAUSED, reason)
        await self._stop_step()

    def resume(self, hint: str = "") -> None:
        """Go on after a pause, with something for the model to know."""
        if self.state is not State.PAUSED:
            raise StateError(f"The task is {self.state}, not paused.")
        if hint.strip():
            self.hint(hint)
        self._enter(State.RUNNING)
        self._go_on.set()

    def hint(self, text: str) -> None:
        """Something for the model to know at its next step."""
        self.recorder.record("hint", text=text)
        self.note(text)

    def answer(self, text: str) -> None:
        """What the model asked for."""
        if self.state is not State.WAITING_USER or self._reply is None:
            raise StateError(f"The task is {self.state}; the model has not asked anything.")
        if not self._reply.done():
            self._reply.set_result(text)

    def consent(self, request_id: int, allow: bool) -> None:
        """Allow or refuse the action that waits under this number."""
        request = self.consent_request
        if request is None or self._reply is None or request.id != request_id:
            raise StateError("That action does not wait for consent (any more).")
        if not self._reply.done():
            self._reply.set_result(Consent.ALLOW if allow else Consent.DENY)

    async def cancel(self, reason: str = "Cancelled by the user.") -> None:
        """End the task; returns when nothing more is sent and nothing is held down."""
        if self._task is None or self._task.done():
            return
        self._enter(State.CANCELLED, reason)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def ask_consent(
        self, action: Action, reason: Reason, category: Category | None = None
    ) -> Consent:
        """Called by a step."""
        self._consents += 1
        self._enter(
            State.WAITING_CONSENT, str(reason), why=asdict(reason),
            id=self._consents, action=to_json(action), category=category,
        )  # fmt: skip
        request = ConsentRequest(self._consents, action, self.reason)
        self.consent_request = request
        try:
            verdict = Consent(await self._wait_for_reply(self.limits.consent))
        except TimeoutError:
            verdict = Consent.TIMEOUT if self.limits.consent else Consent.NOBODY
        finally:
            self.consent_request = None
        self.recorder.record("consent", id=request.id, verdict=verdict)
        self._enter(State.RUNNING)
        return verdict

    async def ask_user(self, question: str) -> str | None:
        """Called by a step: the user's answer, or None when none comes."""
        self._enter(State.WAITING_USER, question)
        self.question = self.reason
        try:
            text: str | None = await self._wait_for_reply(self.limits.answer)
        except TimeoutError:
            text = None
        finally:
            self.question = ""
        if text is not None:
            self.recorder.record("answer", text=text)
        self._enter(State.RUNNING)
        return text

    async def _wait_for_reply(self, seconds: float) -> str:
        self._reply = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                return await self._reply
        finally:
            self._reply = None

    async def _run(self) -> None:
        try:
            done = None
            while done is None:
                await self._go_on.wait()
                done = await self._one_step()
            self._enter(State.DONE if done.success else State.FAILED, done.answer)
        except asyncio.CancelledError:
            if not self.state.over:
                self._enter(State.CANCELLED, "The agent is shutting down.")
        except PagodaError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a task's edge
            log.error("A task failed.\n%s", self.recorder.redact(traceback.format_exc()))
            self._fail(f"{type(error).__name__}: {error} (a bug; the log says where)")
        finally:
            await self.release()
            await self.finish()

    async def _one_step(self) -> Done | None:
        self._stepping = asyncio.ensure_future(self.step(self))
        try:
            return await self._stepping
        except PauseRequest as request:
            self._go_on.clear()
            await self.release()
            self._enter(State.PAUSED, str(request))
            return None
        except asyncio.CancelledError:
            if self.state is State.PAUSED and self._stepping.cancelled():
                return None
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError, PagodaError):
                await self._stepping
            raise
        finally:
            self._stepping = None

    async def _stop_step(self) -> None:
        stepping = self._stepping
        if stepping is not None:
            stepping.cancel()
            await asyncio.wait([stepping])
        await self.release()

    def _fail(self, reason: str) -> None:
        # A full disk is a reason to fail, and must not hide it.
        with contextlib.suppress(PagodaError):
            self._enter(State.FAILED, reason)

    def _enter(self, state: State, reason: str = "", **fields: object) -> None:
        self.state, self.reason = state, reason
        if state is State.RUNNING:
            self.budget.resume()
        else:
            self.budget.pause()
        kept = self.recorder.record("state", state=state, reason=reason, **fields)
        # Without secrets, as others see it.
        self.reason = kept["reason"]
