"""Actions and events in a terminal's words, which are the page's."""

import re
from pathlib import Path

import pytest

from pagoda_agent import service
from pagoda_agent.cli.lines import Lines
from pagoda_agent.input.actions import (
    Ask,
    Click,
    CursorPosition,
    Done,
    Drag,
    HidReset,
    Key,
    Move,
    Point,
    Power,
    Press,
    Release,
    Screenshot,
    Scroll,
    Type,
    Wait,
    Zoom,
    to_json,
)
from pagoda_agent.input.describe import WORDS, describe

AT, END = Point(0.2, 0.25), Point(1, 1)
SIZE = (1280, 720)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Move(AT), "Move (256, 180)"),
        (Click(AT), "Click (256, 180)"),
        (Click(None, "right", 2, ("ControlLeft",)), "Click right ×2 ControlLeft"),
        (Drag((AT, END)), "Drag (256, 180) → (1279, 719)"),
        (Press(AT), "Press the button (256, 180)"),
        (Release(None, "middle"), "Release the button middle"),
        (Scroll(AT, dy=3, dx=-1), "Scroll (256, 180) ↑3 ←1"),
        (Scroll(None, dy=-2, dx=4), "Scroll ↓2 →4"),
        (Type("a\n中"), 'Type "a\\n中"'),
        (Key(("ControlLeft", "KeyC"), 3), "Key ControlLeft+KeyC ×3"),
        (Wait(2.5), "Wait 2.5 s"),
        (Screenshot(), "Look again"),
        (Zoom(AT, END), "Look closely (256, 180) – (1279, 719)"),
        (CursorPosition(), "Ask where the pointer is"),
        (Power("hold"), "Power button: hold"),
        (HidReset(), "Plug keyboard and mouse out and in"),
        (Ask("Which?"), "Ask: Which?"),
        (Done(True, "It is 4."), "Done: It is 4."),
    ],
)
def test_actions_in_words(action, words):
    assert describe(to_json(action), SIZE) == words


def test_the_words_are_the_pages():
    texts = (Path(service.__file__).parent / "assets" / "translations.js").read_text()
    words = re.findall(r'^  act([A-Z]\w+): "(.*)",$', texts, re.MULTILINE)
    assert dict(words[: len(words) // 2]) == WORDS


def texts_of(lines, **event):
    return [text for text, _style in lines.of(event)]


def test_a_step_is_shown_in_pixels():
    lines = Lines()
    assert texts_of(lines, event="step", step=1, frame={"size": [1280, 720]}) == []
    click = to_json(Click(AT))
    shown = texts_of(lines, event="actions", step=1, thought="There.", actions=[click])
    assert shown == ["  1 There.", "    Click (256, 180)"]


def test_a_long_task_is_shortened():
    start = {"event": "start", "model": "m", "driver": "x11"}
    (text,) = texts_of(Lines(), task="x" * 100_000, **start)
    assert len(text) < 500 and text.endswith("... (100,000 characters) (m through x11)")
    assert texts_of(Lines(), task="short", **start) == ["short (m through x11)"]


def test_a_reply_that_is_not_understood_is_shown_and_advice_given_once():
    lines = Lines()
    for number in range(2):
        texts_of(lines, event="reply", text=f"I would\nclick{number}.", tool_calls=[])
        shown = "\n".join(texts_of(lines, event="not understood", reason="There is no action."))
        assert "not understood: There is no action." in shown
        assert f"the reply was: I would\\nclick{number}." in shown
        assert ("--profile" in shown and "calibrate" in shown) == (number == 0)
