"""One step: look, ask the model, check what it wants, do it, look again."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pagoda_agent.base.errors import ActionError, ConnectionLostError, NoSignalError
from pagoda_agent.consent.policy import Decision, Policy
from pagoda_agent.consent.reasons import Reason
from pagoda_agent.consent.refused import take_back
from pagoda_agent.drivers.base import Driver
from pagoda_agent.input import actions
from pagoda_agent.input.actions import (
    Action,
    Ask,
    CursorPosition,
    Done,
    InputAction,
    Key,
    Point,
    Screenshot,
    Type,
    Wait,
    Zoom,
)
from pagoda_agent.input.perform import perform
from pagoda_agent.models.dialogue import ChatModel, Dialect, Parsed, Picture, Reply
from pagoda_agent.models.profiles import Profile
from pagoda_agent.runs.recorder import Recorder
from pagoda_agent.screen.effect import Effect, changed_at, compare
from pagoda_agent.screen.frame import Frame
from pagoda_agent.screen.observe import Settle, settled
from pagoda_agent.secrets import Secrets
from pagoda_agent.task.budget import Budget
from pagoda_agent.task.control import Consent, Control, PauseRequest
from pagoda_agent.task.history import History
from pagoda_agent.task.stuck import STOP_AT, StuckDetector, Verdict

# So many replies in a row that cannot be understood end the task.
MAX_REASKS = 3
# Seconds for which what a step left needs no second look.
_FRESH = 1.0
_NUDGE = (
    "You have repeated yourself without any effect. The next step must be a different one: look "
    "again, try another way to the same goal, or ask the user."
)
_GOES_IN_CIRCLES = (
    f"The model did the same {STOP_AT} times without effect. What should it do instead?"
)
_TAKEN_OVER = "Somebody moved the computer's mouse; the agent lets go of it."
_NOT_EXECUTED = "Not executed, because of what came before."
_INTERRUPTED = "Interrupted by the user; it may be done in part."
_STOPPED = "Not executed: stopped by the user."
_NO_ANSWER = "Nobody is there to answer; decide yourself, or end the task."
_REFUSED = {
    Consent.DENY: "Refused by the user: {} Do not try it again.",
    Consent.TIMEOUT: "Not executed: {} The user must allow it, and nobody answered in time.",
    Consent.NOBODY: "Not executed: {} The user must allow it, and nobody is there to be asked.",
}


@dataclass
class Stepper:
    """Carries out the steps of one task; `step` fits `Control.step`."""

    driver: Driver
    model: ChatModel
    profile: Profile
    dialect: Dialect
    history: History
    policy: Policy
    budget: Budget
    secrets: Secrets
    recorder: Recorder
    instruct: Callable[[tuple[int, int]], str]
    """The system prompt for pictures of such a size."""
    settle: Settle = field(default_factory=Settle)
    number: int = 0
    """Number of the last step."""

    def __post_init__(self) -> None:
        self._stuck = StuckDetector()
        self._seen: Frame | None = None
        """What the last step left."""
        self._size: tuple[int, int] | None = None
        self._details: list[Picture] = []
        """Parts that the model zoomed into."""
        self._acting = False
        """An action is under way, or ended in the middle."""

    async def step(self, control: Control) -> Done | None:
        """How the task ended, or None while it goes on. May be cancelled anywhere: what was not
        carried out by then never is."""
        self.budget.before_call()
        frame = self._seen
        if frame is None or time.monotonic() - frame.received_at > _FRESH:
            frame = await self._look(control)
        self.number += 1
        picture = self._picture(frame)
        kept = self.recorder.journal.save_picture(frame, picture)
        self.recorder.record("step", step=self.number, frame=kept)
        parsed = await self._think(picture)
        done = next((action for action in parsed.actions if isinstance(action, Done)), None)
        if done is not None:
            return done
        await self._act(control, parsed, frame)
        changing = [action for action in parsed.actions if isinstance(action, InputAction)]
        targets = tuple(point for action in changing for point in actions.points(action))
        after = await self._look(
            control, lambda now: not changing or compare(frame, now, targets).happened
        )
        effect = compare(frame, after, targets)
        self.recorder.record("effect", step=self.number, kind=effect.kind, share=effect.share,
                             box=effect.box)  # fmt: skip
        if changing:
            self.history.add_note(effect.describe())
        ended = await self._check_progress(control, parsed, effect, after)
        self._seen = after
        return ended

    async def let_go(self) -> None:
        """Lift what is held down: a person may use the computer now."""
        try:
            self.policy.interrupted()
        finally:
            await self.driver.release_all()

    async def _look(
        self, control: Control, shows_effect: Callable[[Frame], bool] = lambda frame: True
    ) -> Frame:
        try:
            frame = await settled(self.driver, self.settle, shows_effect)
        except NoSignalError as error:
            hint = await control.ask_user(f"{error} What should be done?")
            if hint is None:
                raise
            self.history.add_hint(hint)
            frame = await settled(self.driver, self.settle)
        if self._size not in (None, frame.size):
            width, height = frame.size
            self.history.system = self.instruct(self.profile.picture_size(frame))
            self.history.add_note(f"The screen has {width}x{height} pixels now.")
        self._size = frame.size
        return frame

    async def _think(self, picture: Picture) -> Parsed:
        """The model's actions, all of them understood and possible. ActionError when it cannot be
        brought to say any."""
        self.history.add_picture(picture)
        for attempt in range(MAX_REASKS + 1):
            self.budget.before_call()
            reply = await self._complete(picture.size)
            self.history.add_reply(reply)
            self._record_reply(reply)
            self.budget.after_call(reply.usage)
            try:
                parsed = self.dialect.parse(reply, picture.size)
                self.recorder.record(
                    "actions", step=self.number, thought=parsed.thought,
                    actions=[actions.to_json(action) for action in parsed.actions],
                )  # fmt: skip
                return parsed
            except ActionError as error:
                if attempt == MAX_REASKS:
                    raise ActionError(
                        f"The model's replies were not understood {MAX_REASKS + 1} times in a "
                        f"row; the last: {error}"
                    ) from error
                self.recorder.record("not understood", step=self.number, reason=str(error))
                self.history.add_refusal(str(error))
        raise AssertionError("the last attempt returns or raises")

    async def _complete(self, screen: tuple[int, int]) -> Reply:
        tools = self.dialect.tools(screen, self.driver.capabilities)
        try:
            async with asyncio.timeout(self.budget.seconds_left()):
                return await self.model.complete(self.history.messages(), tools)
        except TimeoutError:
            self.budget.before_call()  # says that the time is over
            raise
        except asyncio.CancelledError:
            self.history.drop_pictures()
            raise

    async def _act(self, control: Control, parsed: Parsed, frame: Frame) -> None:
        """Carry out the actions until one fails; the model is told how each went."""
        results: list[str] = []
        consented = self._acting = False
        try:
            if parsed.warnings:
                reason = Reason("warning", {"text": " ".join(parsed.warnings)})
                verdict = await control.ask_consent(parsed.actions[0], reason)
                consented = verdict.allowed
                if not consented:
                    results.append(_REFUSED[verdict].format(reason))
                    return
            for index, action in enumerate(parsed.actions):
                result, goes_on = await self._do(control, index, action, parsed.thought, frame)
                results.append(result)
                self.recorder.record("result", step=self.number, index=index, text=result)
                if not goes_on:
                    break
        except BaseException:
            # A pause, which may also show as a driver's error while keys are lifted.
            results.append(_INTERRUPTED if self._acting else _STOPPED)
            raise
        finally:
            missing = len(parsed.actions) - len(results)
            results += [_NOT_EXECUTED] * missing
            self.history.add_outcomes(parsed.call_ids, results, consented)
            for detail in self._details:
                self.history.add_picture(detail)
            self._details = []

    async def _do(
        self, control: Control, index: int, action: Action, thought: str, frame: Frame
    ) -> tuple[str, bool]:
        """(what to tell the model, whether the actions behind it may follow)"""
        match action:
            case Ask(question):
                answer = await control.ask_user(question)
                return _NO_ANSWER if answer is None else f"The user says: {answer}", False
            case Wait(seconds):
                await asyncio.sleep(seconds)
                return f"Waited {seconds:g} s.", True
            case Screenshot():
                return "A new picture follows.", False
            case Zoom():
                return self._zoom(action, frame), False
            case CursorPosition():
                return _position(await self.driver.pointer()), True
            case Done():
                raise AssertionError("the step ends before")
        if await self.driver.taken_over():
            raise PauseRequest(_TAKEN_OVER)
        if actions.points(action) and await self._screen_changed_size(frame):
            return "Not executed: the screen's size changed after you saw it.", False
        typed = isinstance(action, Type | Key)
        program = await self.driver.focused_program() if typed else None
        if refusal := await self._refusal(control, action, thought, frame, program):
            return refusal, False
        self.recorder.record("acting", step=self.number, index=index)
        self._acting = True
        try:
            with self.policy.noting(action, program):
                await perform(self.driver, action, self.secrets.reveal)
            self._acting = False
        except ActionError as error:
            return f"Not executed: {error}", False
        except ConnectionLostError as error:
            return f"The connection was lost, it may be done in part: {error}", False
        return "Done.", True

    async def _refusal(
        self,
        control: Control,
        action: InputAction,
        thought: str,
        frame: Frame,
        program: str | None,
    ) -> str:
        """Why it may not be done; empty where it may."""
        judgement = self.policy.judge(action, thought, program)
        if judgement.decision is Decision.ALLOW:
            return ""
        category, reason = judgement.category, judgement.reason
        assert category is not None and reason is not None, "who asks says why"
        asked = None
        refusal = f"Refused by the settings: {reason}"
        if judgement.decision is Decision.CONFIRM:
            asked = await self.driver.screenshot()
            offer = judgement.offer
            said = None if offer is None else offer.reason
            verdict = await control.ask_consent(action, reason, category, said)
            if offer is not None and verdict is Consent.LASTING:
                self.policy.allow(offer)
            refusal = "" if verdict.allowed else _REFUSED[verdict].format(reason)
        if refusal:
            left = await take_back(self.driver, self.policy, self.settle, action, category, asked)
            return refusal + left
        if await self._changed_meanwhile(action, frame):
            return "Not executed: what it was aimed at changed before it was allowed."
        return ""

    async def _screen_changed_size(self, frame: Frame) -> bool:
        size = await self.driver.screen_size()
        return size is not None and size != frame.size

    async def _changed_meanwhile(self, action: Action, frame: Frame) -> bool:
        """Consent takes a person seconds or minutes: whether the action's targets look different
        from what the model saw."""
        targets = actions.points(action)
        if not targets:
            return False
        now = await self.driver.screenshot()
        return any(changed_at(frame, now, target) for target in targets)

    async def _check_progress(
        self, control: Control, parsed: Parsed, effect: Effect, after: Frame
    ) -> Done | None:
        verdict = self._stuck.add(parsed.actions, effect, after)
        if verdict is Verdict.NUDGE:
            self.recorder.record("stuck", step=self.number, verdict=verdict.value)
            self.history.add_note(_NUDGE)
        elif verdict is Verdict.STOP:
            self.recorder.record("stuck", step=self.number, verdict=verdict.value)
            hint = await control.ask_user(_GOES_IN_CIRCLES)
            if hint is None:
                return Done(False, f"The model went in circles: {STOP_AT} times the same.")
            self._stuck.reset()
            self.history.add_hint(hint)
        return None

    def _zoom(self, action: Zoom, frame: Frame) -> str:
        (left, top), (right, bottom) = action.upper_left, action.lower_right
        width, height = frame.size
        box = (
            int(left * width), int(top * height),
            max(int(left * width) + 1, round(right * width)),
            max(int(top * height) + 1, round(bottom * height)),
        )  # fmt: skip
        part = self._picture(Frame(frame.image.crop(box), frame.number))
        self._details.append(part)
        return "The part follows, then the whole screen; positions refer to the whole."

    def _picture(self, frame: Frame) -> Picture:
        profile = self.profile
        size = profile.picture_size(frame)
        data = frame.encoded(profile.picture_format, size)
        return Picture(data, f"image/{profile.picture_format.lower()}", size)

    def _record_reply(self, reply: Reply) -> None:
        self.recorder.record(
            "reply", step=self.number, text=reply.text, reasoning=reply.reasoning,
            tool_calls=[msgspec.to_builtins(call) for call in reply.tool_calls],
            usage=msgspec.to_builtins(reply.usage), spent=msgspec.to_builtins(self.budget.spent),
        )  # fmt: skip


def _position(pointer: Point | None) -> str:
    if pointer is None:
        return "Where the pointer is, is not known."
    return f"The pointer is at x={pointer.x:.3f}, y={pointer.y:.3f} (shares of the screen)."
