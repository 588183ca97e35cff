import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.nanokvm import NanoKvm
from pagoda_agent.dialects.space import Space
from pagoda_agent.input.actions import Ask, Click, Done, Drag, Key, Move, Point, Scroll, Type, Wait
from pagoda_agent.models.dialogue import Reply, ToolCall
from tests.agent.dialect_cases import CHORDS, FULL, SCREEN


def parsed(text, space=Space.THOUSAND):
    return NanoKvm(space).parse(Reply(text), SCREEN)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("mouse 250 750 0", Move(Point(0.25, 0.75))),
        ("mouse 250 750 1", Click(Point(0.25, 0.75))),
        ("mouse 1000 1000 2", Click(Point(1, 1), "right")),
        ("mouse 0 0 3", Click(None, count=2)),
        ("mouse 0 500 4", Click(Point(0, 0.5), "right", 2)),
        ("mouse 0 0 5", Scroll(None, dy=-1)),
        ("mouse 500 500 6", Scroll(Point(0.5, 0.5), dy=1)),
        ("mouse 500 500 5 7", Scroll(Point(0.5, 0.5), dy=-7)),
        ("drag 0 0 500 1000", Drag((Point(0, 0), Point(0.5, 1)))),
        ("keyboard ctrl+shift+t", Key(("ControlLeft", "ShiftLeft", "KeyT"))),
        ("keyboard Enter", Key(("Enter",))),
        ("typestr  two  blanks # $ ", Type(" two  blanks # $ ")),
        ("typestr Done", Type("Done")),
        ("backspace 12", Key(("Backspace",), repeat=12)),
        ("sleep 1.5", Wait(1.5)),
        ("$ Which of the two?", Ask("Which of the two?")),
        ("Done", Done()),
        ("  Done \r", Done()),
    ],
)
def test_each_command(line, action):
    result = parsed(f"# I see it.\n#and do it\n\n{line}")
    assert result.actions == (action,)
    assert result.thought == "I see it.\nand do it"


def test_one_one_is_what_the_setting_says():
    assert parsed("mouse 1 1 1").actions == (Click(Point(0.001, 0.001)),)
    assert parsed("mouse 1 1 1", Space.UNIT).actions == (Click(Point(1, 1)),)
    assert parsed("mouse 0.25 0.5 1", Space.UNIT).actions == (Click(Point(0.25, 0.5)),)
    with pytest.raises(ActionError, match="x is 250, .* from 0 to 1[.]"):
        parsed("mouse 250 0.5 1", Space.UNIT)


@given(st.text(st.characters(exclude_characters="\n"), min_size=1).filter(lambda t: t[-1] != "\r"))
def test_any_line_is_typed_as_it_is(text):
    if "</think>" not in text and "<think>" not in text:
        assert parsed(f"typestr {text}").actions == (Type(text),)


@given(CHORDS)
def test_any_chord_comes_back(codes):
    (key,) = parsed(f"keyboard {'+'.join(codes)}").actions
    assert isinstance(key, Key)
    assert set(key.codes) == set(codes)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_any_position_comes_back(x0, y0, x1, y1):
    path = (Point(x0 / 1000, y0 / 1000), Point(x1 / 1000, y1 / 1000))
    assert parsed(f"drag {x0} {y0} {x1} {y1}").actions == (Drag(path),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("# only thoughts", "no action"),
        ("I will click there.", 'no command "I"; Allowed: mouse, drag, keyboard'),
        ("mose 1 1 1", "did you mean 'mouse'"),
        ("done", 'no command "done"'),
        ("Done.", "no command"),
        ("mouse 1 1", '"mouse 1 1" must have the form mouse X Y B'),
        ("mouse 1 1 1 1", "must have the form"),
        ("mouse 1 1 7", "must be 0, 1, 2, 3, 4, 5 or 6"),
        ("mouse 1 1 1.5", "must be 0, 1"),
        ("mouse 0 0 0", "where the pointer is already"),
        ("mouse a 1 1", '"a" is no number'),
        ("mouse nan 1 1", '"nan" is no number'),
        ("mouse inf 1 1", '"inf" is no number'),
        ("mouse 1e2 1 1", '"1e2" is no number'),
        ("mouse -5 1 1", "x is -5, which is off the screen"),
        ("mouse 1 1001 1", "y is 1001, .* 0 to 1000"),
        ("mouse 1 1000000000 1", r"y is 1e\+09"),
        (f"mouse 1 {'9' * 5000} 1", "is no number"),
        ("mouse 1 1 5 0", "1 or more"),
        ("mouse 1 1 5 1.5", "must be a whole number"),
        ("mouse 1 1 5 101", "notches is -101"),
        ("drag 1 1 1", "must have the form drag X0 Y0 X1 Y1"),
        ("keyboard", "no keys"),
        ("keyboard hyper+x", "no key 'hyper'"),
        ("typestr", "no text to type"),
        ("backspace 0", "repeats is 0"),
        ("backspace 1e9", "no number"),
        ("sleep -1", "seconds to wait is -1"),
        ("sleep 61", "from 0 to 60"),
        ("$", "question is empty"),
        ("mouse 1 1 1\nDone", "ends the task and acts as well"),
        ("Done\nDone", "ends the task"),
        ("$ What?\nmouse 1 1 1", "Ask as the last"),
        ("\n".join(["sleep 1"] * 4), "4 commands in your reply; at most 3"),
    ],
)
def test_wrong_lines_say_what_is_wrong(text, said):
    with pytest.raises(ActionError, match=said):
        parsed(text)


def test_tool_calls_are_refused():
    with pytest.raises(ActionError, match="there are no tools"):
        NanoKvm().parse(Reply("sleep 1", (ToolCall("1", "x", "{}"),)), SCREEN)


def test_what_the_model_is_told():
    told = NanoKvm(Space.UNIT).instructions(SCREEN, FULL)
    assert "x from 0 (left) to 1 (right)" in told
    for command in ("mouse X Y B", "drag X0", "keyboard KEYS", "typestr", "backspace", "sleep"):
        assert command in told
