"""Whole tasks: a scripted model and a computer that is drawn; nothing else is replaced."""

import asyncio
import json
from functools import partial

import pytest

from pagoda_agent import settings as agent_settings
from pagoda_agent.base.errors import (
    ConnectionLostError,
    DriverError,
    ModelError,
    UnsupportedActionError,
)
from pagoda_agent.models.dialogue import Reply, Usage
from pagoda_agent.runs.journal import JOURNAL, JournalError, read
from pagoda_agent.screen.observe import Settle
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings
from pagoda_agent.task.budget import Budget
from pagoda_agent.task.control import State, StateError
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer

PATIENCE = 30
QUICK = Settle(least=0.0, between=0.001, patience=0.01, most=0.1, dark=0.05)


class Script:
    """A model that says one thing after the other and keeps what it was sent."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.requests = []
        self.asked = asyncio.Event()
        self.closed = False

    async def complete(self, messages, tools=()):
        self.requests.append([*messages])
        self.asked.set()
        reply = self.replies.pop(0) if self.replies else "Done"
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, asyncio.Event):
            await reply.wait()
            return await self.complete(messages, tools)
        return Reply(reply, usage=Usage(1000, 400, 20))

    async def close(self):
        self.closed = True

    def told(self, request=-1):
        """All text of a request but the instructions."""
        return "\n".join(message.text for message in self.requests[request][1:])


@pytest.fixture
def computer():
    return FakeComputer()


@pytest.fixture
def make(computer, tmp_path):
    """An operator of the fake computer with a scripted model."""

    def make(*replies, secrets=None, **settings):
        script = Script(*replies)
        operator = Operator(
            computer,
            Settings(**{"model": "any", "profile": "nanokvm", **settings}),
            Secrets(secrets or {}),
            tmp_path / "runs",
            QUICK,
            lambda api, endpoint: script,
        )
        return operator, script

    return make


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


async def run(operator, task="do it"):
    control = await operator.start(task)
    async with asyncio.timeout(PATIENCE):
        await control.wait()
    return control


def entered(computer):
    return ("down", "Enter") in computer.log


def journal(operator):
    return list(read(operator.folder))


async def test_a_task_from_start_to_end(make, computer):
    operator, script = make("# I click it\nmouse 500 500 1", "typestr hello", "Done")
    control = await run(operator, "Say hello")
    assert control.state is State.DONE
    assert computer.done("move") == [("move", 320, 180)]
    assert computer.done("press", "release") == [("press", "left"), ("release", "left")]
    assert computer.typed == "hello" and computer.held == ()
    assert "Say hello" in script.told(0)
    assert "% of the screen changed" in script.told(1)
    assert script.closed
    events = [event["event"] for event in journal(operator)]
    assert events[0] == "start" and events[-1] == "state"
    assert events.count("step") == 3 and events.count("acting") == 2
    assert journal(operator)[-1]["state"] == "done"
    frames = {event["frame"]["file"] for event in journal(operator) if event["event"] == "step"}
    assert frames <= {path.name for path in (operator.folder / "frames").iterdir()}


async def test_pause_hint_resume(make, computer):
    thinking = asyncio.Event()
    operator, script = make(thinking, "mouse 100 100 1", "Done")
    control = await operator.start("x")
    await until(script.asked.is_set)
    await control.pause()
    assert control.state is State.PAUSED and not computer.done("press")
    script.replies.insert(0, "mouse 900 900 1")
    await control.resume("use the other menu")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert "use the other menu" in script.told(1)
    pictures = [len(message.pictures) for message in script.requests[1]]
    assert sum(pictures) == 1, "the picture of the request that was given up is gone"
    assert computer.done("move")[0] == ("move", 576, 324)


async def test_a_reply_that_comes_after_the_pause_is_not_carried_out(make, computer):
    answer = asyncio.Event()
    operator, script = make(answer, "mouse 500 500 1")
    control = await operator.start("x")
    await until(script.asked.is_set)
    await control.pause()
    answer.set()
    await asyncio.sleep(0.05)
    assert computer.log == [] and control.state is State.PAUSED
    await control.cancel()
    assert control.state is State.CANCELLED and computer.log == []


async def test_stopping_in_the_middle_of_typing(make, computer):
    computer.typing_pause = 0.01
    operator, _script = make("typestr " + "x" * 5000)
    control = await operator.start("x")
    await until(lambda: len(computer.typed) > 3)
    await control.pause()
    typed = len(computer.typed)
    await asyncio.sleep(0.1)
    assert len(computer.typed) == typed < 5000
    await operator.close()


async def test_what_was_interrupted_is_told(make, computer):
    computer.typing_pause = 0.01
    operator, script = make("typestr " + "x" * 5000 + "\nmouse 1 1 1", "Done")
    control = await operator.start("x")
    await until(lambda: computer.typed)
    await control.pause()
    await control.resume()
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert "it may be done in part" in script.told() and not computer.done("press")


async def test_the_model_asks_and_the_user_answers(make):
    operator, script = make("$ Which printer?", "Done")
    control = await operator.start("print it")
    await until(lambda: control.state is State.WAITING_USER)
    assert control.question == "Which printer?"
    with pytest.raises(StateError, match="not paused"):
        await control.resume("x")
    await control.answer("the blue one")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert "the blue one" in script.told()


async def test_reset_and_another_task(make, computer):
    operator, script = make("mouse 500 500 1", "Done", "Done")
    first = await run(operator, "first task")
    folder = operator.folder
    with pytest.raises(StateError):
        await first.consent(1, True)
    await operator.reset()
    assert operator.events.since(0) == []
    await run(operator, "second task")
    assert operator.folder != folder
    assert "first task" not in script.told() and "second task" in script.told()
    assert len(script.requests[-1]) == 2, "instructions and the task"


async def test_only_one_task_at_a_time(make):
    operator, script = make(asyncio.Event())
    started = await asyncio.gather(operator.start("a"), operator.start("b"), return_exceptions=True)
    assert sum(isinstance(result, StateError) for result in started) == 1
    with pytest.raises(StateError, match="Another task"):
        await operator.start("c")
    await operator.close()
    with pytest.raises(StateError, match="empty"):
        await operator.start("  ")


async def test_what_follows_a_failed_action_is_not_done(make, computer):
    operator, script = make("mouse 10 10 1\nkeyboard ctrl+c\nmouse 20 20 1", "Done")
    computer.fails["down"] = ConnectionLostError("The cable is out.")
    await run(operator)
    assert computer.done("move") == [("move", 6, 4)]
    told = script.told()
    assert "it may be done in part: The cable is out." in told
    assert "Not executed, because of what came before" in told


async def test_a_batch_of_four_of_which_the_second_fails(make, computer):
    batch = [
        {"action": "left_click", "coordinate": [100, 100]},
        {"action": "hscroll", "coordinate": [200, 200], "pixels": 100},
        {"action": "type", "text": "never"},
        {"action": "left_click", "coordinate": [300, 300]},
    ]
    calls = [{"name": "computer_use", "arguments": arguments} for arguments in batch]
    text = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    end = {"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}
    computer.fails["wheel"] = UnsupportedActionError("There is no such wheel.")
    operator, script = make(
        text, f"<tool_call>\n{json.dumps(end)}\n</tool_call>", profile="qwen3-vl"
    )
    control = await run(operator)
    assert control.state is State.DONE, control.reason
    assert computer.done("move") == [("move", 64, 36), ("move", 128, 72)]
    assert len(computer.done("press")) == 1 and computer.typed == "" and computer.held == ()
    told = script.told()
    results = [
        told.index(words) for words in ("1. Done.", "2. Not executed: There is no such wheel")
    ]
    rest = [told.index(f"{number}. Not executed, because of what came before") for number in (3, 4)]
    assert [*results, *rest] == sorted([*results, *rest])


async def test_a_reply_that_cannot_be_understood_is_asked_for_again(make, computer):
    operator, script = make("I shall click now.", "mouse 5000 1 1", "mouse 500 500 1", "Done")
    control = await run(operator)
    assert control.state is State.DONE and len(computer.done("press")) == 1
    assert "5000" in script.told(2), "the exact value that was wrong"


async def test_a_model_that_never_makes_sense_ends_the_task(make, computer):
    operator, script = make(*["what?"] * 9)
    control = await run(operator)
    assert control.state is State.FAILED and "4 times in a row" in control.reason
    assert len(script.requests) == 4 and computer.log == []


@pytest.mark.parametrize(("allow", "left"), [(True, "reboot"), (False, "")])
async def test_a_dangerous_action_waits_for_the_user(make, computer, allow, left):
    operator, script = make("typestr reboot\\n", "Done")
    script.replies[0] = "typestr reboot\nkeyboard Enter"
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    assert computer.typed == "reboot" and not computer.done("down")
    request = control.consent_request
    assert "reboot" in request.reason
    with pytest.raises(StateError):
        await control.consent(request.id + 1, True)
    await control.consent(request.id, allow)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert entered(computer) is allow and computer.typed == left
    assert ("Refused by the user" in script.told()) is not allow


async def test_nobody_answers_and_it_is_refused(make, computer):
    operator, script = make("typestr reboot\nkeyboard Enter", "Done", consent_seconds=0.01)
    control = await run(operator)
    assert control.state is State.DONE and not entered(computer)
    verdicts = [event for event in journal(operator) if event["event"] == "consent"]
    assert verdicts[0]["verdict"] == "timeout"
    assert "nobody answered in time" in script.told() and "Refused" not in script.told()


async def test_what_changed_while_the_user_decided_is_not_clicked(make, computer):
    operator, script = make("# I press the Pay button\nmouse 500 500 1", "Done")
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    computer.paint((300, 160, 340, 200))
    await control.consent(control.consent_request.id, True)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert not computer.done("press") and "changed before it was allowed" in script.told()


async def test_pause_while_consent_is_asked_for(make, computer):
    operator, _script = make("typestr reboot\nkeyboard Enter", "Done")
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    request = control.consent_request
    await control.pause()
    with pytest.raises(StateError):
        await control.consent(request.id, True)
    assert not computer.done("down")
    await operator.close()


async def test_another_resolution_between_look_and_action(make, computer):
    answer = asyncio.Event()
    operator, script = make(answer, "mouse 500 500 1", "Done")
    control = await operator.start("x")
    await until(script.asked.is_set)
    computer.resize((800, 600))
    answer.set()
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert not computer.done("press")
    assert "size changed after you saw it" in script.told() and "800x600" in script.told()


async def test_the_same_click_without_effect(make, computer):
    computer.deaf = True
    operator, script = make(*["mouse 500 500 1"] * 20, answer_seconds=0.01)
    control = await run(operator)
    assert control.state is State.FAILED and "circles" in control.reason
    assert len(computer.done("press")) == 6
    assert "must be a different one" in script.told(3)
    assert "must be a different one" not in script.told(2)


async def test_going_in_circles_the_user_is_asked(make, computer):
    computer.deaf = True
    operator, script = make(*["mouse 500 500 1"] * 6, "Done")
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_USER)
    await control.answer("try the keyboard")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE and "try the keyboard" in script.told()


@pytest.mark.parametrize(
    ("caps", "name"),
    [
        ({"max_rounds": 3}, "rounds"),
        ({"max_tokens": 2500}, "tokens"),
        ({"max_cost": 0.01, "price_input": 4.0, "price_output": 10.0}, "cost"),
        ({"max_minutes": 0.0005}, "seconds"),
    ],
)
async def test_caps_end_the_task(make, caps, name):
    operator, script = make(*(f"mouse {n} {n} 1" for n in range(0, 1000, 10)), **caps)
    control = await run(operator)
    assert control.state is State.FAILED and f"cap on {name}" in control.reason
    assert len(script.requests) <= 40
    assert "pagoda agent resume RUN --max-" in control.reason


async def test_the_clock_stands_still_while_the_user_thinks(make, monkeypatch):
    now = 0.0
    monkeypatch.setattr(agent_settings, "Budget", partial(Budget, clock=lambda: now))
    operator, _script = make("$ Which?", "Done", max_minutes=1)
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_USER)
    now += 3600
    await control.answer("this")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE


async def test_errors_end_the_task_and_say_why(make, computer):
    operator, _script = make(ModelError("The key was refused."))
    control = await run(operator)
    assert (control.state, control.reason) == (State.FAILED, "The key was refused.")
    operator, _script = make("mouse 500 500 1", "Done")
    computer.fails["press"] = DriverError("The device is gone.")
    control = await run(operator)
    assert (control.state, control.reason) == (State.FAILED, "The device is gone.")
    assert computer.held == ()


async def test_a_fault_of_ours_is_no_end_of_the_agent(make, computer, caplog):
    operator, _script = make("mouse 500 500 1", "Done")
    computer.fails["move"] = "broken"
    control = await run(operator)
    assert control.state is State.FAILED and "AssertionError: broken (a bug" in control.reason


async def test_a_full_disk_stops_cleanly(make, computer, monkeypatch):
    answer = asyncio.Event()
    operator, script = make(answer, "mouse 500 500 1", "Done")
    control = await operator.start("x")
    await until(script.asked.is_set)

    def full(*args, **fields):
        raise JournalError("No space left on device.")

    monkeypatch.setattr(control.recorder.journal, "write", full)
    answer.set()
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert (control.state, control.reason) == (State.FAILED, "No space left on device.")
    assert computer.log == [], "what cannot be written down is not done"


async def test_the_user_takes_the_mouse(make, computer):
    operator, script = make("mouse 500 500 1\nmouse 600 600 1", "Done")
    computer.taken_over_at = 2
    control = await operator.start("x")
    await until(lambda: control.state is State.PAUSED)
    assert "moved the computer's mouse" in control.reason
    assert len(computer.done("press")) == 1 and computer.held == ()
    await control.resume("go on")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE and "stopped by the user" in script.told()


async def test_no_signal_asks_the_user(make, computer):
    operator, script = make("mouse 500 500 1", "mouse 400 500 1", "Done")
    control = await operator.start("x")
    computer.image.paste((0, 0, 0), (0, 0, 640, 360))
    computer.deaf = True
    await until(lambda: control.state is State.WAITING_USER)
    assert "shown nothing" in control.question
    computer.paint((0, 0, 640, 300), (90, 90, 90))
    await control.answer("I switched it on")
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE and "switched it on" in script.told()


async def test_secrets_reach_the_keyboard_and_nothing_else(make, computer):
    operator, script = make("typestr {{secret:wifi}}", "Done", secrets={"wifi": "correct horse"})
    script.replies[1] = "typestr I typed correct horse"
    control = await operator.start("x")
    await until(lambda: control.state is State.WAITING_CONSENT)
    await control.consent(control.consent_request.id, True)
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert computer.typed.startswith("correct horse")
    everything = (operator.folder / JOURNAL).read_text() + repr(script.requests)
    everything += json.dumps(operator.events.since(0))
    assert "correct horse" not in everything and "{{secret:wifi}}" in everything


async def test_preview_costs_one_look_for_many_viewers(make, computer):
    operator, _script = make("Done")
    frames = await asyncio.gather(*(operator.look() for _ in range(20)))
    assert len({frame.number for frame in frames}) == 1
