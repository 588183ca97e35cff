"""Runs that are gone on with, or done again."""

import asyncio

import pytest

from pagoda_agent.base.errors import ModelError
from pagoda_agent.runs.journal import JOURNAL, read
from pagoda_agent.runs.replay import ReplayError, replay
from pagoda_agent.task.control import State, StateError
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import PATIENCE, QUICK, computer, make, run, until

__all__ = ["computer", "make"]


async def test_a_run_that_failed_goes_on(make, computer):
    operator, _script = make("mouse 100 100 1", "mouse 200 200 1", max_rounds=1)
    control = await run(operator)
    folder = operator.folder
    again, script = make(ModelError("Is the server running?"), max_rounds=3)
    control = await again.resume(folder)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.FAILED
    again, script = make("Done", max_rounds=3)
    control = await again.resume(folder)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE and "mouse 100 100 1" in script.told(0)
    with pytest.raises(StateError, match="over: done"):
        await again.resume(folder)


async def test_resume_after_a_crash_goes_on_at_the_next_step(make, computer):
    operator, script = make("mouse 100 100 1", "typestr abc", asyncio.Event())
    control = await operator.start("the task")
    control.note("x")
    await until(lambda: len(script.requests) == 3)
    await operator.control.pause()
    # As kill -9 leaves it: nothing is written any more.
    lines = (operator.folder / JOURNAL).read_text().splitlines(keepends=True)
    cut = [line for line in lines if '"paused"' not in line]
    await operator.close()
    (operator.folder / JOURNAL).write_text("".join(cut))
    folder, done = operator.folder, len(computer.log)

    again, script = make("mouse 900 900 1", "Done")
    control = await again.resume(folder)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE
    assert [entry for entry in computer.log[done:] if entry[0] == "move"] == [("move", 576, 324)]
    assert "the task" in script.told(0) and "typestr abc" in script.told(0)
    assert "started anew" in script.told(0)
    numbers = [event["step"] for event in read(folder) if event["event"] == "step"]
    assert numbers == sorted(set(numbers)), "step numbers go on"
    with pytest.raises(StateError, match="over"):
        await again.resume(folder)


async def test_an_action_that_was_under_way_is_not_repeated(make, computer, tmp_path):
    computer.typing_pause = 0.01
    operator, _script = make("typestr " + "y" * 500)
    await operator.start("x")
    await until(lambda: len(computer.typed) > 2)
    text = (operator.folder / JOURNAL).read_text()
    folder = operator.folder
    await operator.close()
    (folder / JOURNAL).write_text(text)
    typed = len(computer.typed)
    again, script = make("Done")
    await asyncio.wait_for((await again.resume(folder)).wait(), PATIENCE)
    assert len(computer.typed) == typed
    assert "may be done or not" in script.told(0)


async def test_replay_does_the_same_and_stops_where_the_screen_differs(make, computer):
    operator, _script = make("mouse 500 500 1", "typestr hello", "keyboard Enter", "Done")
    computer.program = "firefox"
    await run(operator)
    before = list(computer.log)
    again = FakeComputer()
    again.program = "firefox"
    steps = await replay(operator.folder, again, str, QUICK)
    assert steps == 3 and again.log == before

    changed = FakeComputer()
    changed.paint((300, 160, 340, 200))
    with pytest.raises(ReplayError, match="Step 1: the screen around.* `pagoda agent run`"):
        await replay(operator.folder, changed, str, QUICK)
    assert changed.log == []
    smaller = FakeComputer((320, 180))
    with pytest.raises(ReplayError, match="320x180"):
        await replay(operator.folder, smaller, str, QUICK)
