"""The states of a task, and what a user may do in each: the one place that decides."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial

import msgspec

from pagoda_agent.base.errors import AgentError
from pagoda_agent.consent.policy import Category
from pagoda_agent.consent.reasons import Reason
from pagoda_agent.input.actions import Action, Done, to_json
from pagoda_agent.runs.recorder import Recorder
from pagoda_agent.task.budget import Budget
from pagoda_agent.task.inbox import Inbox

log = logging.getLogger(__name__)

# A step that is stopped may wait for a connection that is gone, or take its cancellation for a
# fault of that; so long, and it is cancelled again.
_STOP_SECONDS = 1.0
PAUSED = "Paused by the user."
CANCELLED = "Cancelled by the user."
_SHUTDOWN = "The agent is shutting down."


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
    LASTING = "lasting"
    """Allowed, with all that the request offered."""
    DENY = "deny"
    TIMEOUT = "timeout"
    NOBODY = "nobody"
    """There was nobody to ask."""

    @property
    def allowed(self) -> bool:
        return self in (Consent.ALLOW, Consent.LASTING)


class PauseRequest(Exception):  # noqa: N818 - no error
    """Raised by a step that should not go on before the user says so."""


class StateError(AgentError):
    """What was asked for has no meaning in the task's state; nothing happened."""


@dataclass(frozen=True)
class ConsentRequest:
    id: int
    action: Action
    reason: str
    offer: str
    """What may be allowed beyond the action; empty where nothing may."""


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

    One asyncio task owns all of it: it begins and stops the steps and serves the commands, one
    after the other. A command is on its way when its method returns; to await it is to wait until
    it was served, and to learn of its error. None is left unanswered, also not by a task that ends.

    Stopping comes first and is written down second: a full disk keeps no agent acting. To go on is
    written down first.
    """

    recorder: Recorder
    step: Step
    release: Callable[[], Awaitable[None]]
    """Lifts what is held down; called whenever a step was stopped or no other follows it."""
    finish: Callable[[], Awaitable[None]]
    """At the end of the task, once."""
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
        self._owner: asyncio.Task[None] | None = None
        self._inbox = Inbox()
        self._stepping: asyncio.Future[Done | None] | None = None
        self._reply: asyncio.Future[str] | None = None
        self._consents = 0

    def start(self) -> None:
        self._owner = asyncio.create_task(self._own(), name="agent")

    async def wait(self) -> None:
        """Until the task is over."""
        if self._owner is not None:
            await asyncio.wait([self._owner])

    def pause(self, reason: str = PAUSED) -> Awaitable[None]:
        """Stop at once, whatever is going on: a reply that comes later is not acted on, typing
        ends. Served when nothing more is sent and nothing is held down; nothing happens to a task
        that is paused or over. Raises nothing."""
        return self._inbox.put(partial(self._pause, reason))

    def resume(self, hint: str = "") -> Awaitable[None]:
        """Go on after a pause, with something for the model to know. Raises StateError, and
        JournalError while that cannot be written; the task stays paused then."""
        return self._inbox.put(partial(self._resume, hint))

    def hint(self, text: str) -> Awaitable[None]:
        """Something for the model to know at its next step. Raises StateError for a task that is
        over, JournalError."""
        return self._inbox.put(partial(self._hint, text))

    def answer(self, text: str) -> Awaitable[None]:
        """What the model asked for. Raises StateError where it did not."""
        return self._inbox.put(partial(self._answer, text))

    def consent(self, request_id: int, allow: bool, lasting: bool = False) -> Awaitable[None]:
        """Allow or refuse the action that waits under this number; `lasting` allows all that the
        request offers. Raises StateError where none waits, or it offers nothing."""
        return self._inbox.put(partial(self._consent, request_id, allow, lasting))

    async def cancel(self, reason: str = CANCELLED) -> None:
        """End the task; returns when nothing more is sent, nothing is held down, and `finish` was
        called. Nothing happens to a task that is over. Raises nothing."""
        await self._inbox.put(partial(self._cancel, reason))
        await self.wait()

    async def ask_consent(
        self,
        action: Action,
        reason: Reason,
        category: Category | None = None,
        offer: Reason | None = None,
    ) -> Consent:
        """Called by a step. `offer` says what may be allowed beyond the action."""
        offered = "" if offer is None else str(offer)
        self._consents += 1
        self._enter(
            State.WAITING_CONSENT, str(reason), why=asdict(reason),
            id=self._consents, action=to_json(action), category=category, offer=offered,
        )  # fmt: skip
        request = ConsentRequest(self._consents, action, self.reason, offered)
        self.consent_request = request
        try:
            verdict = Consent(await self._wait_for_reply(self.limits.consent))
        except TimeoutError:
            verdict = Consent.TIMEOUT if self.limits.consent else Consent.NOBODY
        finally:
            self.consent_request = None
        taken = {"offer": offered} if verdict is Consent.LASTING else {}
        self.recorder.record("consent", id=request.id, verdict=verdict, **taken)
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

    async def _own(self) -> None:
        try:
            self._begin_step()
            while not self.state.over:
                await self._inbox.serve()
        except asyncio.CancelledError:
            await self._stop(State.CANCELLED, _SHUTDOWN)
        except Exception as error:  # noqa: BLE001 - a task's edge
            await self._stop(State.FAILED, self._bug(error))
        finally:
            try:
                await self._attempt(self.finish)
            finally:
                await self._inbox.close()

    async def _pause(self, reason: str) -> None:
        if not self.state.over and self.state is not State.PAUSED:
            await self._stop(State.PAUSED, reason)

    async def _cancel(self, reason: str) -> None:
        if not self.state.over:
            await self._stop(State.CANCELLED, reason)

    async def _resume(self, hint: str) -> None:
        if self.state is not State.PAUSED:
            raise StateError(f"The task is {self.state}, not paused.")
        if hint.strip():
            await self._hint(hint)
        self._enter(State.RUNNING)
        self._begin_step()

    async def _hint(self, text: str) -> None:
        if self.state.over:
            raise StateError(f"The task is over: {self.state}.")
        self.recorder.record("hint", text=text)
        self.note(text)

    async def _answer(self, text: str) -> None:
        if self.state is not State.WAITING_USER or self._reply is None:
            raise StateError(f"The task is {self.state}; the model has not asked anything.")
        if not self._reply.done():
            self._reply.set_result(text)

    async def _consent(self, request_id: int, allow: bool, lasting: bool) -> None:
        request = self.consent_request
        if request is None or self._reply is None or request.id != request_id:
            raise StateError("That action does not wait for consent (any more).")
        if lasting and not (allow and request.offer):
            raise StateError(
                "That action can be allowed this once, or refused; it cannot be allowed for longer."
            )
        if not self._reply.done():
            allowed = Consent.LASTING if lasting else Consent.ALLOW
            self._reply.set_result(allowed if allow else Consent.DENY)

    def _begin_step(self) -> None:
        step = self._stepping = asyncio.ensure_future(self.step(self))
        step.add_done_callback(lambda _: self._inbox.put(partial(self._go_on_after, step)))

    async def _go_on_after(self, step: "asyncio.Future[Done | None]") -> None:
        if step is not self._stepping:
            return  # a command before this one stopped it
        ended = await self._end_step()
        if ended is None:
            self._begin_step()
        else:
            await self._stand(*ended)

    async def _stop(self, state: State, reason: str) -> None:
        ended = await self._end_step()
        if ended is not None and ended[0].over:
            # The task ended before it could be stopped.
            state, reason = ended
        await self._stand(state, reason)

    async def _end_step(self) -> tuple[State, str] | None:
        """The state that the step leads to and why, if it is not to be followed by another. It is
        over when this returns, stopped where it was not."""
        step = self._stepping
        if step is None:
            return None
        stopped = not step.done()
        while not step.done():
            step.cancel()
            await asyncio.wait([step], timeout=_STOP_SECONDS)
        try:
            done = step.result()
        except asyncio.CancelledError:
            return None if stopped else (State.CANCELLED, _SHUTDOWN)
        except PauseRequest as request:
            return State.PAUSED, str(request)
        except AgentError as error:
            # One that is stopped may fail at what it does last, such as lifting keys.
            return None if stopped else (State.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - a task's edge
            return State.FAILED, self._bug(error)
        if done is None:
            return None
        return State.DONE if done.success else State.FAILED, done.answer

    async def _stand(self, state: State, reason: str) -> None:
        """Nothing is sent in this state, and nothing is held down."""
        await self._attempt(self.release)
        self._stepping = None
        self.state = state
        self.budget.pause()
        spent = msgspec.to_builtins(self.budget.spent)
        told = self.recorder.tell("state", state=state, reason=reason, spent=spent)
        self.reason = told["reason"]

    def _enter(self, state: State, reason: str = "", **fields: object) -> None:
        """A state in which the task goes on. Raises JournalError, and the state stays."""
        kept = self.recorder.record("state", state=state, reason=reason, **fields)
        # Without secrets, as others see it.
        self.state, self.reason = state, kept["reason"]
        if state is State.RUNNING:
            self.budget.resume()
        else:
            self.budget.pause()

    async def _attempt(self, last: Callable[[], Awaitable[None]]) -> None:
        """Something of the end, whose failure keeps nothing else of the end from being done."""
        try:
            await last()
        except Exception as error:  # noqa: BLE001 - a task's edge
            self._bug(error)

    def _bug(self, error: Exception) -> str:
        trace = "".join(traceback.format_exception(error))
        log.error("A task failed.\n%s", self.recorder.redact(trace))
        return f"{type(error).__name__}: {error} (a bug; the log says where)"
