"""One step: look, ask the model, check what it wants, do it, look again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pagoda.agent import actions
from pagoda.agent.actions import Action, Ask, CursorPosition, Done, Point, Screenshot, Wait, Zoom
from pagoda.agent.budget import Budget
from pagoda.agent.control import Control
from pagoda.agent.dialogue import ChatModel, Message, Parsed, Picture, Reply
from pagoda.agent.drivers.base import Driver
from pagoda.agent.effect import Effect, changed_at, compare
from pagoda.agent.errors import ActionError, ConnectionLostError
from pagoda.agent.frame import Frame
from pagoda.agent.observe import Settle, settled
from pagoda.agent.perform import perform
from pagoda.agent.policy import Decision, Policy
from pagoda.agent.profiles import Profile
from pagoda.agent.recorder import Recorder
from pagoda.agent.secrets import Secrets
from pagoda.agent.stuck import STOP_AT, StuckDetector, Verdict

# So many replies in a row that cannot be understood end the task.
MAX_REASKS = 3
_NUDGE = (
    "You have repeated yourself without any effect. The next step must be a different one: look "
    "again, try another way to the same goal, or ask the user."
)
_GOES_IN_CIRCLES = (
    f"The model did the same {STOP_AT} times without effect. What should it do instead?"
)
_NOT_EXECUTED = "Not executed, because of what came before."
_INTERRUPTED = "Interrupted by the user; it may be done in part."


class Conversation(Protocol):
    """What the model is told and has said; `history.History`."""

    def request(self, picture: Picture) -> list[Message]:
        """The messages of the next call, the picture in the newest."""

    def accept(self, picture: Picture, reply: Reply) -> None:
        """The model's answer to that request becomes part of the conversation."""

    def tell(self, messages: Sequence[Message]) -> None:
        """Results of actions, before the next picture."""

    def say(self, text: str) -> None:
        """A hint of the user or a note of the agent, before the next picture."""


@dataclass
class Stepper:
    """Carries out the steps of one task; `step` fits `Control.step`."""

    driver: Driver
    model: ChatModel
    profile: Profile
    conversation: Conversation
    policy: Policy
    budget: Budget
    secrets: Secrets
    recorder: Recorder
    settle: Settle = field(default_factory=Settle)
    number: int = 0
    """Of the last step."""

    def __post_init__(self) -> None:
        self._stuck = StuckDetector()
        self._size: tuple[int, int] | None = None
        self._details: list[Message] = []

    async def step(self, control: Control) -> Done | None:
        """How the task ended, or None while it goes on. May be cancelled anywhere: what was not
        carried out by then never is."""
        self.budget.check()
        frame = await self._look()
        self.number += 1
        self.budget.round()
        self.recorder.record("step", step=self.number, frame=self.recorder.keep(frame))
        parsed = await self._think(frame)
        done = next((action for action in parsed.actions if isinstance(action, Done)), None)
        if done is not None:
            return done
        await self._act(control, parsed, frame)
        after = await self._look()
        changing = [action for action in parsed.actions if isinstance(action, actions.InputAction)]
        targets = tuple(point for action in changing for point in actions.points(action))
        effect = compare(frame, after, targets)
        self.recorder.record("effect", step=self.number, kind=effect.kind, share=effect.share,
                             box=effect.box)  # fmt: skip
        if changing:
            self.conversation.say(effect.describe())
        return await self._check_progress(control, parsed, effect, after)

    async def _look(self) -> Frame:
        frame = await settled(self.driver, self.settle)
        if self._size not in (None, frame.size):
            width, height = frame.size
            self.conversation.say(f"The screen has {width}x{height} pixels now.")
        self._size = frame.size
        return frame

    async def _think(self, frame: Frame) -> Parsed:
        """The model's actions, all of them understood and possible. ActionError when it cannot be
        brought to say any."""
        picture = self.profile.picture(frame)
        for attempt in range(MAX_REASKS + 1):
            self.budget.check()
            messages = self.conversation.request(picture)
            reply = await self.model.complete(
                messages, self.profile.dialect.tools(picture.size, self.driver.capabilities)
            )
            self.budget.add(reply.usage)
            self.conversation.accept(picture, reply)
            self._record_reply(reply)
            try:
                parsed = self.profile.dialect.parse(reply, picture.size)
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
                ids = tuple(call.id for call in reply.tool_calls)
                self._tell(ids, [f"Not understood, nothing was done: {error}"])
        raise AssertionError("the last attempt returns or raises")

    async def _act(self, control: Control, parsed: Parsed, frame: Frame) -> None:
        """Carry out the actions until one fails; the model is told how each went."""
        results: list[str] = []
        try:
            for index, action in enumerate(parsed.actions):
                result, goes_on = await self._do(control, index, action, parsed.thought, frame)
                results.append(result)
                self.recorder.record("result", step=self.number, index=index, text=result)
                if not goes_on:
                    break
        except BaseException:
            results.append(_INTERRUPTED)
            raise
        finally:
            missing = len(parsed.actions) - len(results)
            self._tell(parsed.call_ids, results + [_NOT_EXECUTED] * missing)

    async def _do(
        self, control: Control, index: int, action: Action, thought: str, frame: Frame
    ) -> tuple[str, bool]:
        """(what to tell the model, whether the actions behind it may follow)"""
        match action:
            case Ask(question):
                return f"The user says: {await control.ask_user(question)}", False
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
        if actions.points(action) and await self._moved(frame):
            return "Not executed: the screen's size changed after you saw it.", False
        judgement = self.policy.judge(action, thought)
        if judgement.decision is Decision.DENY:
            return f"Refused by the settings: {judgement.reason}", False
        if judgement.decision is Decision.CONFIRM:
            if not await control.ask_consent(action, judgement):
                return f"Refused by the user: {judgement.reason} Do not try it again.", False
            if await self._changed_meanwhile(action, frame):
                return "Not executed: what it was aimed at changed before it was allowed.", False
        self.recorder.record("acting", step=self.number, index=index)
        try:
            await perform(self.driver, action, self.secrets.reveal)
        except ActionError as error:
            return f"Not executed: {error}", False
        except ConnectionLostError as error:
            return f"The connection was lost, it may be done in part: {error}", False
        self.policy.note(action)
        return "Done.", True

    async def _moved(self, frame: Frame) -> bool:
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
            self.conversation.say(_NUDGE)
        elif verdict is Verdict.STOP:
            self.recorder.record("stuck", step=self.number, verdict=verdict.value)
            try:
                hint = await control.ask_user(_GOES_IN_CIRCLES)
            except TimeoutError:
                return Done(False, f"The model went in circles: {STOP_AT} times the same.")
            self._stuck.reset()
            self.conversation.say(f"The user says: {hint}")
        return None

    def _zoom(self, action: Zoom, frame: Frame) -> str:
        (left, top), (right, bottom) = action.upper_left, action.lower_right
        width, height = frame.size
        box = (
            int(left * width), int(top * height),
            max(int(left * width) + 1, round(right * width)),
            max(int(top * height) + 1, round(bottom * height)),
        )  # fmt: skip
        part = self.profile.picture(Frame(frame.image.crop(box), frame.number))
        self._details.append(Message("user", "The part that you zoomed into:", (part,)))
        return "The part follows, then the whole screen; positions refer to the whole."

    def _tell(self, call_ids: Sequence[str], results: Sequence[str]) -> None:
        self.conversation.tell(self.profile.dialect.result(call_ids, results))
        self.conversation.tell(self._details)
        self._details = []

    def _record_reply(self, reply: Reply) -> None:
        self.recorder.record(
            "reply", step=self.number, text=reply.text, reasoning=reply.reasoning,
            tool_calls=[msgspec.to_builtins(call) for call in reply.tool_calls],
            usage=msgspec.to_builtins(reply.usage), spent=self.budget.spent(),
        )  # fmt: skip


def _position(pointer: Point | None) -> str:
    if pointer is None:
        return "Where the pointer is, is not known."
    return f"The pointer is at x={pointer.x:.3f}, y={pointer.y:.3f} (shares of the screen)."
