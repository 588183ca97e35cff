"""A recorded run, done again without a model, as long as the screen looks as it did then."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from pagoda_agent.base.errors import AgentError
from pagoda_agent.consent.line import Memory
from pagoda_agent.consent.policy import Decision, Judgement, Policy
from pagoda_agent.consent.reasons import Reason
from pagoda_agent.consent.refused import take_back
from pagoda_agent.drivers.base import Driver
from pagoda_agent.input import actions
from pagoda_agent.input.actions import InputAction, Type
from pagoda_agent.input.perform import perform
from pagoda_agent.runs.journal import FRAMES, JournalError, read
from pagoda_agent.screen.effect import changed_at, compare
from pagoda_agent.screen.frame import Frame
from pagoda_agent.screen.observe import Settle, settled

Unsure = tuple[InputAction, Judgement]
_NO_FRAME = {"file": "", "size": [0, 0]}
# Keys and text have no target to look at: so much of the screen may differ before them.
_MAY_DIFFER = 0.05


_GO_ON = (
    "Bring the screen to what it was then and replay the run again, or give the task to a model "
    "with `pagoda agent run`."
)


class ReplayError(AgentError):
    """The screen is not as it was when the run was recorded, or what comes next was not allowed;
    nothing more was done."""


@dataclass(frozen=True)
class RecordedStep:
    number: int
    frame: Path
    screen: tuple[int, int]
    """Pixels of the screen, of which `frame` may be a smaller picture."""
    actions: tuple[InputAction, ...]
    """Those that were carried out."""
    thought: str = ""
    """The model's, of what they are for."""


def recorded_steps(folder: Path) -> Iterator[RecordedStep]:
    """The steps of a run that did something. Raises JournalError for a broken run."""
    number, frame, screen, thought = 0, "", (0, 0), ""
    planned: list[dict[str, Any]] = []
    done: list[InputAction] = []
    for event in [*read(folder), {"event": "step", "step": 0, "frame": _NO_FRAME}]:
        match event:
            case {"event": "step", "step": step, "frame": {"file": file, "size": [w, h]}}:
                if done:
                    path = _frame_path(folder, frame)
                    yield RecordedStep(number, path, screen, tuple(done), thought)
                number, frame, screen, planned, done = step, file, (w, h), [], []
            case {"event": "actions", "actions": listed}:
                planned, thought = listed, str(event.get("thought", ""))
            case {"event": "acting", "index": int(index)} if 0 <= index < len(planned):
                done.append(_action(folder, planned[index]))


async def _nobody(step: RecordedStep, reason: Reason) -> bool:
    return False


async def replay(
    folder: Path,
    driver: Driver,
    reveal: Callable[[str], str],
    settle: Settle | None = None,
    report: Callable[[RecordedStep], None] = lambda step: None,
    policy: Policy | None = None,
    allow: Callable[[RecordedStep, Reason], Awaitable[bool]] = _nobody,
) -> int:
    """Carry out a run's actions again; how many steps. Raises ReplayError as soon as the screen
    around an action's target differs from the recorded one.

    Consent that was given then counts for nothing now: `allow` is asked before a step of which the
    `policy` asks it, and raises or answers no to end here.
    """
    policy = policy or Policy()
    settle = settle or Settle()
    count = 0
    try:
        for step in recorded_steps(folder):
            now = await settled(driver, settle)
            _compare(step, _load(step.frame), now)
            report(step)
            for action, judgement in _unsure(step, policy, await driver.focused_program()):
                category, reason = judgement.category, judgement.reason
                assert category is not None and reason is not None, "who asks says why"
                if judgement.decision is Decision.DENY or not await allow(step, reason):
                    said = f"Step {step.number} was not allowed: {reason}"
                    left = await take_back(driver, policy, settle, action, category)
                    raise ReplayError(said + left)
            for action in step.actions:
                with policy.noting(action, await driver.focused_program()):
                    await perform(driver, action, reveal)
            count += 1
    finally:
        await driver.release_all()
    return count


def _unsure(step: RecordedStep, policy: Policy, program: str | None) -> list[Unsure]:
    """Those of the step's actions that a user is asked about, or refuses."""
    trial = replace(policy, memory=Memory())
    trial.memory.keep(policy.memory.line)
    found = []
    for action in step.actions:
        found.append((action, trial.judge(action, step.thought, program)))
        trial.note(action)
        # What has the focus then is seen only when it is done.
        program = program if isinstance(action, Type) and action.text.isprintable() else None
    return [(action, told) for action, told in found if told.decision is not Decision.ALLOW]


def _compare(step: RecordedStep, then: Frame, now: Frame) -> None:
    if step.screen != now.size:
        raise ReplayError(
            f"Step {step.number} was recorded at {step.screen[0]}x{step.screen[1]} pixels; the "
            f"screen has {now.size[0]}x{now.size[1]} now. {_GO_ON}"
        )
    now = now.scaled(then.size)
    # What a step's later actions are aimed at may only appear with its first.
    first = step.actions[0]
    targets = actions.points(first)
    for target in targets:
        if changed_at(then, now, target):
            raise ReplayError(
                f"Step {step.number}: the screen around ({target.x:.3f}, {target.y:.3f}), where "
                f"its {type(first).__name__} goes, differs from the recorded one ({step.frame}). "
                f"{_GO_ON}"
            )
    share = compare(then, now).share
    if not targets and share > _MAY_DIFFER:
        raise ReplayError(
            f"Step {step.number}: {100 * share:.0f}% of the screen differs from the recorded one "
            f"({step.frame}). {_GO_ON}"
        )


def _load(path: Path) -> Frame:
    try:
        with Image.open(path) as image:
            return Frame(image.convert("RGB"), 0)
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} is not a readable screenshot: {error}.") from error


def _frame_path(folder: Path, name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise JournalError(f"The journal in {folder} names a file elsewhere: {name!r}.")
    return folder / FRAMES / name


def _action(folder: Path, fields: dict[str, Any]) -> InputAction:
    action = actions.from_json(fields)
    if not isinstance(action, InputAction):
        raise JournalError(f"The journal in {folder} carried out a {type(action).__name__}.")
    return action
