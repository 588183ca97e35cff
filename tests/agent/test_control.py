"""What users do to a task at any moment, together and with a disk that is full at any time."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_agent.base.errors import ConnectionLostError, DriverError
from pagoda_agent.runs.journal import JournalError
from pagoda_agent.task.control import State, StateError
from tests.agent.played import FULL, Play, play

# What the model wants: keys and buttons are held at different moments of each.
REPLIES = [
    "drag 100 100 500 500",
    "keyboard ctrl+shift+a\nmouse 10 10 1",
    "typestr some words",
    "typestr reboot\nkeyboard Enter",  # asks for consent
    "$ Which printer?",
]
COMMANDS = [
    *["pause", "resume"] * 2, "hint", "answer", "allow", "deny", "cancel", "reset", "start",
    "leave",
]  # fmt: skip
# Seconds before a command: together with the one before, amid an action, between two, much later.
PAUSES = [0, 0, 0.001, 0.02, 0.05, 0.1, 0.7, 30]

Script = list[tuple[float, str]]
SCRIPTS = st.lists(st.tuples(st.sampled_from(PAUSES), st.sampled_from(COMMANDS)), max_size=12)
FULL_DISKS = st.builds(
    lambda first, number: range(first, first + number), st.integers(0, 30), st.integers(0, 4)
)


async def follow(part: Play, script: Script):
    for seconds, command in script:
        if seconds:
            await asyncio.sleep(seconds)
        part.do(command)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(REPLIES), max_size=3), SCRIPTS, FULL_DISKS, st.sampled_from(PAUSES))
def test_any_commands_at_any_time(replies, script, full, patience):
    async def scene(part):
        await follow(part, script)
        await asyncio.sleep(patience)

    play(scene, replies, full)


GENTLE = [command for command in COMMANDS if command not in ("cancel", "reset")]


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(REPLIES), max_size=3),
    st.lists(st.tuples(st.sampled_from(PAUSES), st.sampled_from(GENTLE)), max_size=12),
)
def test_what_nobody_ends_is_done_in_the_end(replies, script):
    async def scene(part):
        await follow(part, script)
        await part.let_it_end()
        assert part.control.state is State.DONE, part.control.reason

    play(scene, replies)


# Amid a drag: the button goes down 0.1 s after the task began, and up 0.3 s later.
AMID = [0.08, 0.13, 0.3]


@pytest.mark.parametrize("moment", AMID)
def test_a_resume_right_behind_the_pause_goes_on(moment):
    async def scene(part):
        await asyncio.sleep(moment)
        part.do("pause")
        part.do("resume")
        await part.let_it_end()
        assert part.control.state is State.DONE

    play(scene, ["drag 100 100 500 500"])


@pytest.mark.parametrize("later", [0.0, 0.015, 0.06])
def test_who_ends_a_task_that_is_ending_waits_for_its_end(later):
    async def scene(part):
        await asyncio.sleep(0.13)
        part.do("cancel")
        await asyncio.sleep(later)
        part.do("cancel")
        part.do("hint")

    play(scene, ["drag 100 100 500 500"])


@pytest.mark.parametrize("who", ["pause", "leave"])
def test_a_pause_holds_while_the_disk_is_full(who):
    async def scene(part):
        await asyncio.sleep(0.2)
        part.full = range(part.writes, 1000)
        part.do(who)
        await asyncio.sleep(1)
        assert part.control.state is State.PAUSED and part.computer.held == ()
        assert part.operator.events.since(0)[-1]["state"] == "paused", "the page learns of it"
        sent = len(part.computer.log)
        with pytest.raises(JournalError, match=FULL):
            await part.control.resume("use the other menu")
        await asyncio.sleep(10)
        assert part.control.state is State.PAUSED and len(part.computer.log) == sent
        part.full = range(0)
        await part.let_it_end()
        assert part.control.state is State.DONE

    play(scene, ["typestr " + "x" * 500])


def test_a_task_is_cancelled_while_the_disk_is_full():
    async def scene(part):
        await asyncio.sleep(0.2)
        part.full = range(part.writes, 1000)
        await part.control.cancel()
        assert part.control.state is State.CANCELLED
        last = part.operator.events.since(0)[-1]
        assert (last["state"], last["reason"]) == ("cancelled", "Cancelled by the user.")

    play(scene, ["drag 100 100 500 500"])


def test_a_task_that_cannot_be_written_down_does_not_begin():
    async def scene(part):
        await part.operator.reset()
        part.full = range(part.writes, part.writes + 1)
        with pytest.raises(JournalError, match=FULL):
            await part.operator.start("do it")
        assert not part.operator.busy and part.models[-1].closed == 1
        await part.operator.start("do it")

    play(scene, [])


@pytest.mark.parametrize("command", ["pause", "reset", "close"])
def test_a_task_that_is_stopped_before_it_began_does_not_begin(command):
    async def scene(part):
        await part.operator.reset()
        starting = asyncio.create_task(part.operator.start("do it"))
        await asyncio.sleep(0.01)
        stop = part.operator.close if command == "close" else getattr(part, f"_{command}")
        await stop()
        with pytest.raises(StateError, match="stopped before it began"):
            await starting
        await asyncio.sleep(100)
        assert part.computer.log == [] and not part.operator.busy

    play(scene, ["mouse 500 500 1"])


def test_a_reset_forgets_no_task_that_began_meanwhile():
    async def scene(part):
        await asyncio.sleep(0.2)
        resetting = asyncio.create_task(part.operator.reset())
        while part.operator.busy:
            await asyncio.sleep(0.001)
        control = await part.operator.start("another")
        await resetting
        assert part.control is control

    play(scene, ["drag 100 100 500 500"])


@pytest.mark.parametrize(
    "error", [ConnectionLostError("The cable is out."), DriverError("Broken.")]
)
def test_a_connection_that_breaks_as_keys_are_lifted_breaks_no_pause(error):
    async def scene(part):
        await asyncio.sleep(0.11)
        assert part.computer.held
        part.computer.fails["up"] = error
        await part.control.pause()
        assert part.control.state is State.PAUSED and part.computer.held == ()
        told = part.models[0].told
        await part.let_it_end()
        assert part.control.state is State.DONE
        assert "it may be done in part" in told[-1]

    play(scene, ["keyboard ctrl+shift+a"])


def test_a_task_that_is_over_takes_no_hint():
    async def scene(part):
        await part.let_it_end()
        with pytest.raises(StateError, match="over: done"):
            await part.control.hint("x")

    play(scene, [])


def test_a_step_that_takes_its_cancellation_for_something_else_is_stopped():
    async def scene(part):
        await asyncio.sleep(0.2)

        async def look(*args):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()

        part.computer.screenshot = look
        await asyncio.sleep(0.5)
        await part.control.pause()
        assert part.control.state is State.PAUSED

    play(scene, ["drag 100 100 500 500"])


@pytest.mark.parametrize("moment", [0.01, 0.08, 0.13, 0.3, 0.435])
@pytest.mark.parametrize("commands", [[], ["pause"], ["cancel"], ["pause", "resume", "hint"]])
def test_the_program_ends_amid_anything(moment, commands):
    """As asyncio ends what still runs; who waits for a command is answered."""

    async def scene(part):
        await asyncio.sleep(moment)
        for command in commands:
            part.do(command)
        await asyncio.sleep(0.005)
        part.ends += ("The agent is shutting down.",)
        part.control._owner.cancel()
        await part.settle_all()
        await part.control.wait()
        assert part.control.state.over and part.computer.held == ()

    play(scene, ["drag 100 100 500 500"])
