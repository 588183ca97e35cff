"""A task in a terminal, with a person at its keyboard or none."""

import argparse
import asyncio
import os
import signal
import sys

import pytest

from pagoda_agent.cli import replay as replay_command
from pagoda_agent.cli.terminal import Terminal
from pagoda_agent.consent.policy import Category, Decision
from pagoda_agent.runs.journal import Journal, JournalError
from pagoda_agent.runs.replay import ReplayError
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import PATIENCE, computer, entered, journal, make, until

__all__ = ["computer", "make"]
FREE = {Category.SECURE_KEYS: Decision.ALLOW}
CONSENT = "Allow it? [y/N] "


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def person(monkeypatch):
    """Writes what a person types at the terminal."""
    keyboard, terminal = os.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(keyboard, text.encode())
    os.close(keyboard)


class Watched:
    """The command's output so far, and how it ended."""

    def __init__(self, operator, capsys):
        self._capsys = capsys
        self.text = ""
        self.ended = asyncio.create_task(Terminal(operator).run(lambda: operator.start("x")))

    async def shows(self, *texts):
        """Until all of them were shown, one after the other."""

        def shown():
            self.text += self._capsys.readouterr().out
            place = 0
            for text in texts:
                place = self.text.find(text, place) + len(text)
                if place < len(text):
                    return False
            return True

        await until(lambda: shown() or self.ended.done())
        assert shown(), self.text

    async def code(self):
        return await asyncio.wait_for(self.ended, PATIENCE)


async def test_consent_is_asked_and_given(make, computer, person, capsys):
    operator, _script = make("typestr reboot\nkeyboard Enter", "Done")
    watched = Watched(operator, capsys)
    await watched.shows(CONSENT)
    person("y\n")
    assert await watched.code() == 0 and computer.done("down")


@pytest.mark.parametrize(("answers", "sent"), [("a", 2), ("yn", 1), ("nA", 1)])
async def test_consent_that_lasts(make, computer, person, capsys, answers, sent):
    lines = [f"typestr {line}\nkeyboard Enter" for line in ("mkdir a", "mkdir b", "reboot")]
    operator, _script = make("keyboard ctrl+c", *lines, "Done")
    watched = Watched(operator, capsys)
    shown = []
    for answer in answers:
        shown += ["nothing but mkdir", "\nAllow it? [y/N, a: for this task] "]
        await watched.shows(*shown)
        person(f"{answer}\n")
    await watched.shows(*shown, f"Enter would run 'reboot' ('reboot'). {CONSENT}")
    person("a\n")  # was not offered
    assert await watched.code() == 0
    assert computer.log.count(("down", "Enter")) == sent


async def test_a_question_that_nobody_answers_ends(make, computer, person, capsys):
    replies = ["typestr reboot\nkeyboard Enter", "keyboard ctrl+c", "$ Which printer?", "Done"]
    operator, script = make(*replies, consent_seconds=0.05)
    watched = Watched(operator, capsys)
    late = "Nobody answered in time; it is not done.\n"
    await watched.shows(CONSENT, f"\n{late}", "Which printer?\n> ")
    person("y\n")
    assert await watched.code() == 0
    assert "The user says: y" in script.told(), "the answer to the question that is shown"
    assert computer.done("down")[-2:] == [("down", "ControlLeft"), ("down", "KeyC")]
    assert not entered(computer)


async def test_what_was_typed_before_the_question_is_no_answer(make, computer, person, capsys):
    thinking = asyncio.Event()
    operator, script = make(thinking, "typestr reboot\nkeyboard Enter", "Done")
    watched = Watched(operator, capsys)
    await until(script.asked.is_set)
    person("y\n")
    await asyncio.sleep(0.05)
    thinking.set()
    await watched.shows(CONSENT)
    person("\n")
    assert await watched.code() == 0 and not entered(computer)


async def test_ctrl_c_at_a_question_pauses_and_then_ends(make, computer, person, capsys):
    operator, _script = make("typestr reboot\nkeyboard Enter")
    watched = Watched(operator, capsys)
    await watched.shows(CONSENT)
    os.kill(os.getpid(), signal.SIGINT)
    await watched.shows(CONSENT, "\nPaused by the user. A hint, Enter to go on, or q to stop: ")
    os.kill(os.getpid(), signal.SIGINT)
    assert await watched.code() == 1
    await watched.shows("\ncancelled: Cancelled by the user.")
    assert not computer.done("down")


@pytest.mark.parametrize(("typed", "code"), [("use the menu\n", 0), ("q\n", 1), ("\x04", 1)])
async def test_a_pause_ends_with_a_hint_or_the_task(make, person, capsys, typed, code):
    operator, script = make(asyncio.Event(), "Done")
    watched = Watched(operator, capsys)
    await until(script.asked.is_set)
    os.kill(os.getpid(), signal.SIGINT)
    await watched.shows("or q to stop: ")
    script.replies = ["Done"]
    person(typed)
    assert await watched.code() == code
    assert ("use the menu" in script.told()) is (code == 0)


async def test_a_pause_is_asked_about_until_its_end_can_be_written_down(
    make, person, capsys, monkeypatch
):
    operator, script = make(asyncio.Event(), "Done")
    watched = Watched(operator, capsys)
    await until(script.asked.is_set)

    def full(*args, **fields):
        raise JournalError("There is no room.")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "write", full)
        os.kill(os.getpid(), signal.SIGINT)
        await watched.shows("or q to stop: ")
        person("use the menu\n")
        await watched.shows("or q to stop: ", "There is no room.", "or q to stop: ")
    script.replies = ["Done"]
    person("use the menu\n")
    assert await watched.code() == 0 and "use the menu" in script.told()


async def test_the_second_ctrl_c_ends_a_task_that_is_still_being_stopped(
    make, computer, person, capsys, monkeypatch
):
    stopping, stopped = asyncio.Event(), asyncio.Event()
    release_all = computer.release_all

    async def slow():
        stopping.set()
        await stopped.wait()
        await release_all()

    monkeypatch.setattr(computer, "release_all", slow)
    operator, script = make(asyncio.Event())
    watched = Watched(operator, capsys)
    await until(script.asked.is_set)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(stopping.wait(), PATIENCE)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.01)
    stopped.set()
    assert await watched.code() == 1
    await watched.shows("cancelled: Cancelled by the user.")


async def test_nobody_at_the_terminal(make, computer, monkeypatch, capsys):
    replies = ["typestr reboot\nkeyboard Enter", "$ Which printer?", "Done"]
    operator, _script = make(*replies)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        watched = Watched(operator, capsys)
        await watched.shows("asks: Which printer?")
        assert await watched.code() == 0
    await watched.shows("nobody is there to be asked", "asks:", "Nobody is there to answer")
    assert not entered(computer) and journal(operator)[-1]["state"] == "done"


async def test_what_failed_says_how_to_go_on(make, person, capsys):
    operator, _script = make("mouse 1 1 1", max_rounds=1)
    watched = Watched(operator, capsys)
    assert await watched.code() == 1
    name = operator.folder.name
    await watched.shows("--max-rounds N", f"`pagoda agent resume {name}` goes on with it.")


@pytest.mark.parametrize("answer", ["", "y\n", "n\n"])
async def test_replay_asks_again(make, monkeypatch, capsys, request, tmp_path, answer):
    operator, _script = make("keyboard ctrl+alt+delete", "Done", policy=FREE)
    await asyncio.wait_for((await operator.start("x")).wait(), PATIENCE)
    again = FakeComputer()
    monkeypatch.setattr(replay_command, "named_driver", lambda settings: again)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    parser = argparse.ArgumentParser()
    replay_command.add_arguments(parser)
    runs = str(operator.folder.parent)
    replaying = replay_command.replay_run(
        parser.parse_args([operator.folder.name, "--runs-dir", runs])
    )
    if not answer:
        with open(os.devnull) as nothing, pytest.raises(ReplayError, match="Replay it in a term"):
            monkeypatch.setattr(sys, "stdin", nothing)
            await replaying
    else:
        person = request.getfixturevalue("person")
        task = asyncio.create_task(replaying)
        text = ""

        def asked():
            nonlocal text
            text += capsys.readouterr().out
            return CONSENT in text or task.done()

        await until(asked)
        person(answer)
        if answer == "y\n":
            assert await task == 0
        else:
            with pytest.raises(ReplayError, match="Step 1 was not allowed"):
                await task
    assert bool(again.log) is (answer == "y\n")
