"""Who is asked, when nobody is there, and what was typed before the run began."""

import asyncio

import pytest

from pagoda_agent.consent.policy import Category, Decision, Policy, decisions
from pagoda_agent.runs.journal import JOURNAL
from pagoda_agent.runs.replay import ReplayError, replay
from pagoda_agent.task.control import State
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import (
    PATIENCE,
    QUICK,
    computer,
    entered,
    journal,
    make,
    run,
    until,
)  # fmt: skip

__all__ = ["computer", "make"]


async def test_where_nobody_is_there_the_model_decides(make, computer):
    replies = ["typestr reboot\nkeyboard Enter", "$ Which printer?", "Done"]
    operator, script = make(*replies, consent_seconds=0, answer_seconds=0)
    control = await run(operator)
    assert control.state is State.DONE and not entered(computer)
    assert "nobody is there to be asked" in script.told(1) and "Refused" not in script.told()
    assert "Nobody is there to answer; decide yourself" in script.told(2)
    assert "nobody" in [event.get("verdict") for event in journal(operator)]


@pytest.mark.parametrize("moved", ["mouse 10 10 1", "keyboard Left", "keyboard Tab"])
async def test_what_may_stand_elsewhere_is_not_removed_but_told(make, computer, moved):
    operator, script = make(f"typestr make it\n{moved}\nkeyboard Enter", "Done", consent_seconds=0)
    await run(operator)
    assert ("down", "Backspace") not in computer.log and not entered(computer)
    assert "What stands on that line is still there: remove it before" in script.told()


async def test_a_line_that_backspace_did_not_visibly_remove_is_told(make, computer):
    computer.deaf = True
    operator, script = make("typestr make it\nkeyboard Enter", "Done", consent_seconds=0)
    await run(operator)
    assert "What stands on that line is still there: remove it before" in script.told()


async def test_nothing_is_removed_from_a_screen_that_changed_while_the_user_thought(make, computer):
    operator, script = make("typestr make it\nkeyboard Enter", "Done")
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    computer.paint((0, 0, 640, 300))
    control.consent(control.consent_request.id, False)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert ("down", "Backspace") not in computer.log
    assert "What stands on that line is still there: remove it before" in script.told()


async def test_a_person_may_have_typed_during_a_pause(make, computer):
    operator, script = make("keyboard ctrl+c\ntypestr ls\nkeyboard Enter", asyncio.Event())
    control = await operator.start("x")
    await until(lambda: len(script.requests) == 2)
    assert entered(computer)
    script.replies = ["typestr ls\nkeyboard Enter", "Done"]
    await control.pause()
    control.resume()
    await until(lambda: control.state is State.WAITING_CONSENT)
    assert "'ls', and nobody knows what else" in control.consent_request.reason
    await operator.close()


async def test_the_model_is_not_answered_in_time(make):
    operator, script = make("$ Which printer?", "Done", answer_seconds=0.01)
    control = await run(operator)
    assert control.state is State.DONE and "decide yourself" in script.told()
    states = [event["state"] for event in journal(operator) if event["event"] == "state"]
    assert states == ["waiting_user", "running", "done"]


@pytest.mark.parametrize("enter", ["keyboard Enter", "keyboard ctrl+m", "typestr x"])
async def test_a_line_that_another_run_left_over(make, computer, enter):
    operator, script = make("typestr rm -rf work", "Done", consent_seconds=0)
    await run(operator)
    script.replies = [f"{enter}\nkeyboard Enter", "Done"]
    await run(operator)
    assert not computer.done("down")
    assert "run 'rm -rf work'" in script.told()


async def test_a_line_that_is_left_over_when_the_agent_is_killed(
    make, computer, monkeypatch, tmp_path
):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    operator, _script = make("typestr rm -rf work", asyncio.Event())
    await operator.open()
    await operator.start("x")
    await until(lambda: computer.typed == "rm -rf work")
    lines = (operator.folder / JOURNAL).read_text()
    await operator.close()
    (operator.folder / JOURNAL).write_text(lines)  # nothing of the end

    for begin in (lambda again: again.resume(operator.folder), lambda again: again.start("y")):
        again, script = make("keyboard Enter", "Done", consent_seconds=0)
        await again.open()
        await asyncio.wait_for((await begin(again)).wait(), PATIENCE)
        await again.close()
        assert not computer.done("down") and "rm -rf work" in script.told()


async def test_typing_that_was_interrupted_is_remembered(make, computer):
    computer.typing_pause = 0.01
    operator, _script = make("typestr rm -rf work" + "x" * 500, "keyboard Enter", "Done")
    control = await operator.start("x")
    await until(lambda: len(computer.typed) > 12)
    await control.pause()
    await control.resume()
    await until(lambda: control.state is State.WAITING_CONSENT)
    await operator.close()


async def test_replay_asks_for_consent_again(make, computer):
    operator, script = make("typestr reboot", "keyboard Enter", "Done")
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    await control.consent(control.consent_request.id, True)
    await asyncio.wait_for(control.wait(), PATIENCE)

    again = FakeComputer()
    with pytest.raises(ReplayError, match="Step 2 was not allowed: Enter would run 'reboot'"):
        await replay(operator.folder, again, str, QUICK)
    assert again.typed == "" and not entered(again)

    asked = []

    async def allow(step, reason):
        asked.append((step.number, reason.code))
        return True

    again = FakeComputer()
    assert await replay(operator.folder, again, str, QUICK, allow=allow) == 2
    assert asked == [(2, "enteredCommand")] and again.log == computer.log
    never = Policy({**decisions(), Category.COMMAND: Decision.DENY})
    with pytest.raises(ReplayError, match="not allowed"):
        await replay(operator.folder, FakeComputer(), str, QUICK, policy=never, allow=allow)
