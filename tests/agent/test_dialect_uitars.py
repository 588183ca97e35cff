import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.space import Space
from pagoda_agent.dialects.uitars import UiTars
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import Ask, Click, Done, Drag, Key, Point, Scroll, Type, Wait
from pagoda_agent.models.dialogue import Reply
from tests.agent.dialect_cases import ANY_TEXT, CHORDS, FULL, SCREEN, pixel_of, whole_pixels


def parsed(call, space=Space.THOUSAND):
    return UiTars(space).parse(Reply(f"Thought: I see it.\nAction: {call}"), SCREEN)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("click(point='<point>250 750</point>')", Click(Point(0.25, 0.75))),
        ("click(start_box='(250,750)')", Click(Point(0.25, 0.75))),
        ("click (\n\tpoint =\u3000'<point>250 750</point>' )", Click(Point(0.25, 0.75))),
        ("click(start_box='<|box_start|>(250,750)<|box_end|>')", Click(Point(0.25, 0.75))),
        ("click(start_box='[200, 700, 300, 800]')", Click(Point(0.25, 0.75))),
        ("click(point='<bbox>200 700 300 800</bbox>')", Click(Point(0.25, 0.75))),
        ('left_double(point="<point>0 0</point>")', Click(Point(0, 0), count=2)),
        ("right_single(point='<point>0 1000</point>')", Click(Point(0, 1), "right")),
        (
            "drag(start_point='<point>0 0</point>', end_point='<point>500 500</point>')",
            Drag((Point(0, 0), Point(0.5, 0.5))),
        ),
        ("drag(start_box='(0,0)', end_box='(500,500)')", Drag((Point(0, 0), Point(0.5, 0.5)))),
        ("hotkey(key='ctrl c')", Key(("ControlLeft", "KeyC"))),
        (r"type(content='It\'s \"C:\\new\"\n')", Type('It\'s "C:\\new"\n')),
        (
            "scroll(point='<point>500 500</point>', direction='down')",
            Scroll(Point(0.5, 0.5), dy=-5),
        ),
        ("scroll(direction='right')", Scroll(None, dx=5)),
        ("wait()", Wait(5)),
        ("finished()", Done()),
        ("finished(content='It is 42.')", Done(True, "It is 42.")),
        ("call_user()", Ask("I see it.")),
        ("call_user(content='Which?')", Ask("Which?")),
    ],
)
def test_each_action(call, action):
    result = parsed(call)
    assert result.actions == (action,)
    assert result.thought == "I see it."


def test_a_zero_is_a_position():
    (drag,) = parsed("drag(start_box='(0,10)', end_box='(10,0)')").actions
    assert drag == Drag((Point(0, 0.01), Point(0.01, 0)))


def test_several_actions():
    reply = "click(point='<point>1 2</point>')\n\ntype(content='x')"
    assert parsed(reply).actions == (Click(Point(0.001, 0.002)), Type("x"))


def quoted(text, quote):
    for plain, escaped in (("\\", "\\\\"), (quote, f"\\{quote}"), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return quote + text + quote


@given(ANY_TEXT, st.sampled_from("'\""))
def test_any_text_is_typed_as_it_is(text, quote):
    if "<think>" not in text and "</think>" not in text:
        assert parsed(f"type(content={quoted(text, quote)})").actions == (Type(text),)


@given(whole_pixels((1288, 728)), CHORDS)
def test_positions_of_the_resized_picture_and_chords_come_back(pixel, codes):
    click, key = parsed(
        f"click(point='<point>{pixel[0]} {pixel[1]}</point>')\nhotkey(key='{' '.join(codes)}')",
        Space.RESIZED,
    ).actions
    assert isinstance(click, Click) and click.at is not None
    assert pixel_of(click.at, (1288, 728)) == pixel
    assert isinstance(key, Key) and set(key.codes) == set(codes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("Thought: I wonder.", "no `Action:`"),
        ("click(point='<point>1 2</point>')", "no `Action:`"),
        ("Action:", "no action"),
        ("Action: press_home()", 'no action "press_home"; Allowed: click, left_double'),
        ("Action: clik(point='<point>1 2</point>')", "did you mean 'click'"),
        ("Action: click()", "click needs point"),
        ("Action: click(point='<point>1 2</point>', button='left')", "no argument button"),
        ("Action: click(point='1 2', start_box='1 2')", "has both point and start_box"),
        ("Action: click(point='1 2', point='1 2')", "the argument point twice"),
        ("Action: click(point='<point>1</point>')", "is no position"),
        ("Action: click(point='<point>1 2 3</point>')", "is no position"),
        ("Action: click(point='<point>nan 2</point>')", "is no position"),
        ("Action: click(point='<point>1 1001</point>')", "y is 1001"),
        ("Action: click(point='<point>-1 1</point>')", "x is -1"),
        ("Action: click(point='<point>1 1000000000</point>')", r"y is 1e\+09"),
        ("Action: click(point='<point>1 2</point>'", "There should be a comma"),
        ("Action: click(point='<point>1 2", "has no closing '"),
        ("Action: click(point=<point>1 2</point>)", "in quotes, not"),
        ("Action: click(point='1 2') and then", "There should be and"),
        ("Action: type(content='It's')", "There should be a comma"),
        (r"Action: type(content='C:\dir')", r"\\\\d is no escape"),
        ("Action: type(content='')", "no text to type"),
        ("Action: hotkey(key='ctrl frob')", "no key 'frob'"),
        ("Action: scroll(point='1 2', direction='in')", 'no direction "in"'),
        ("Action: wait()\nfinished()", "ends the task and acts as well"),
        ("Action: click(point='1 2')\nAction: wait()", "There should be"),
    ],
)
def test_wrong_replies_say_what_is_wrong(text, said):
    with pytest.raises(ActionError, match=said):
        UiTars(Space.THOUSAND).parse(Reply(text), SCREEN)


def test_what_the_model_is_told():
    assert "x from 0 (left) to 1287" in UiTars().instructions(SCREEN, FULL)
    assert "left or right" in UiTars().instructions(SCREEN, FULL)
    assert "left or right" not in UiTars().instructions(SCREEN, Capabilities())
