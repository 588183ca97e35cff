import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.qwen import Qwen
from pagoda_agent.dialects.space import Space
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import Ask, Click, Done, Drag, Key, Move, Point, Scroll, Type, Wait
from pagoda_agent.models.dialogue import Reply
from tests.agent.dialect_cases import ANY_TEXT, CHORDS, FULL, HELD, SCREEN, calls


def written(*arguments, thought="I see a button."):
    """As Qwen3-VL writes calls into its text."""
    blocks = (json.dumps({"name": "computer_use", "arguments": a}) for a in arguments)
    return Reply("\n".join([thought, *(f"<tool_call>\n{b}\n</tool_call>" for b in blocks)]))


def parsed(*arguments, space=Space.THOUSAND):
    return Qwen(space).parse(written(*arguments), SCREEN)


CASES = [
    ({"action": "key", "keys": ["ctrl", "c"]}, Key(("ControlLeft", "KeyC"))),
    ({"action": "type", "text": "a  b\n"}, Type("a  b\n")),
    ({"action": "mouse_move", "coordinate": [250, 750]}, Move(Point(0.25, 0.75))),
    ({"action": "left_click", "coordinate": [0, 1000]}, Click(Point(0, 1))),
    ({"action": "left_click"}, Click(None)),
    ({"action": "right_click", "coordinate": [1, 2]}, Click(Point(0.001, 0.002), "right")),
    ({"action": "middle_click", "coordinate": [1, 2]}, Click(Point(0.001, 0.002), "middle")),
    ({"action": "double_click", "coordinate": [1, 2]}, Click(Point(0.001, 0.002), count=2)),
    ({"action": "triple_click", "coordinate": [1, 2]}, Click(Point(0.001, 0.002), count=3)),
    (
        {"action": "left_click", "coordinate": [1, 2], "text": "ctrl+shift"},
        Click(Point(0.001, 0.002), modifiers=("ControlLeft", "ShiftLeft")),
    ),
    ({"action": "left_click_drag", "coordinate": [500, 500]}, Drag((Point(0.5, 0.5),))),
    ({"action": "scroll", "pixels": -300}, Scroll(None, dy=-3)),
    ({"action": "scroll", "pixels": 5, "coordinate": [0, 0]}, Scroll(Point(0, 0), dy=1)),
    ({"action": "hscroll", "pixels": 200}, Scroll(None, dx=2)),
    ({"action": "wait", "time": 1.5}, Wait(1.5)),
    ({"action": "ask", "text": "Which?"}, Ask("Which?")),
    ({"action": "answer", "text": "42"}, Done(True, "42")),
    ({"action": "terminate", "status": "failure"}, Done(False)),
]


@pytest.mark.parametrize(("arguments", "action"), CASES)
def test_each_action_in_text_and_as_a_tool_call(arguments, action):
    result = parsed(arguments)
    assert result.actions == (action,)
    assert result.thought == "I see a button."
    assert result.call_ids == ()
    as_call = Qwen(as_tools=True).parse(calls(("computer_use", arguments)), SCREEN)
    assert as_call.actions == (action,)
    assert as_call.call_ids == ("call-0",)


def test_the_divisor_is_a_setting():
    click = {"action": "left_click", "coordinate": [999, 999]}
    assert parsed(click, space=Space.NINES).actions == (Click(Point(1, 1)),)
    assert parsed(click).actions == (Click(Point(0.999, 0.999)),)
    with pytest.raises(ActionError, match="y is 999, .* from 0 to 719"):
        parsed(click, space=Space.PIXELS)


def test_several_calls_keep_their_order():
    first, second = {"action": "left_click"}, {"action": "type", "text": "x"}
    assert parsed(first, second).actions == (Click(None), Type("x"))
    both = Qwen().parse(calls(("computer_use", first), ("computer_use", second)), SCREEN)
    assert both.call_ids == ("call-0", "call-1")


def test_a_call_within_thoughts_is_not_carried_out():
    drafted = written({"action": "type", "text": "no"}).text
    reply = Reply(f"<think>{drafted}</think>" + written({"action": "wait", "time": 1}).text)
    assert Qwen().parse(reply, SCREEN).actions == (Wait(1),)
    with pytest.raises(ActionError, match="ends inside <think>"):
        Qwen().parse(Reply(f"<think>{drafted}"), SCREEN)


@given(ANY_TEXT)
def test_any_text_is_typed_as_it_is(text):
    assert parsed({"action": "type", "text": text}).actions == (Type(text),)


@given(CHORDS)
def test_any_chord_comes_back(codes):
    (key,) = parsed({"action": "key", "keys": list(codes)}).actions
    assert isinstance(key, Key)
    assert set(key.codes) == set(codes)


@given(st.integers(0, 1000), st.integers(0, 1000), HELD)
def test_any_position_comes_back(x, y, held):
    arguments = {"action": "left_click", "coordinate": [x, y]}
    if held:
        arguments["text"] = "+".join(held)
    (click,) = parsed(arguments).actions
    assert click == Click(Point(x / 1000, y / 1000), modifiers=held)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "lef_click"}, "no action \"lef_click\"; did you mean 'left_click'"),
        ({}, "no action null"),
        ({"action": ["key"]}, r"no action \[\"key\"\]"),
        ({"action": "mouse_move"}, "mouse_move needs the field 'coordinate'"),
        ({"action": "left_click", "coordinate": [1, 2], "speed": 3}, 'no field "speed"'),
        ({"action": "left_click", "coordinate": [1, 2, 3]}, r"a list of 2 numbers, not \[1, 2, 3"),
        ({"action": "left_click", "coordinate": ["1", 2]}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": "[1, 2]"}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": {"x": 1, "y": 2}}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": [True, 2]}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": [float("nan"), 2]}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": [float("inf"), 2]}, "a list of 2 numbers"),
        ({"action": "left_click", "coordinate": [-1, 2]}, "x is -1, which is off the screen"),
        ({"action": "left_click", "coordinate": [1, 1001]}, "y is 1001, .* from 0 to 1000"),
        ({"action": "left_click", "coordinate": [1e9, 2]}, r"x is 1e\+09"),
        ({"action": "left_click", "coordinate": [10**400, 2]}, "a list of 2 numbers"),
        ({"action": "key", "keys": "ctrl+c"}, "'keys' must be a list of strings"),
        ({"action": "key", "keys": []}, "no keys to press"),
        ({"action": "key", "keys": ["ctrl", "frob"]}, "no key 'frob'"),
        ({"action": "key", "keys": [f"F{n}" for n in range(1, 13)]}, "12 keys at once"),
        ({"action": "key", "keys": ["a"] * 200 + ["b"]}, None),
        ({"action": "wait", "time": -1}, "seconds to wait is -1; it must be from 0 to 60"),
        ({"action": "wait", "time": 1e9}, "must be from 0 to 60"),
        ({"action": "wait", "time": "5"}, "'time' must be a number, not \"5\""),
        ({"action": "scroll", "pixels": 0}, "goes nowhere"),
        ({"action": "scroll", "pixels": 1e11}, "The scroll's notches is 1e"),
        ({"action": "type", "text": ""}, "no text to type"),
        ({"action": "type", "text": "a" * 20001}, "length of the text"),
        ({"action": "terminate", "status": "won"}, 'one of success, failure, not "won"'),
        ({"action": "terminate"}, "needs the field 'status'"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, said):
    if said is None:  # a key named again and again is one key
        assert parsed(arguments).actions == (Key(("KeyA", "KeyB")),)
        return
    with pytest.raises(ActionError, match=said):
        parsed(arguments)
    with pytest.raises(ActionError, match=said):
        Qwen().parse(calls(("computer_use", arguments)), SCREEN)


CALL = '{"name": "computer_use", "arguments": {"action": "left_click"}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("I click on the button now.", "no action in your reply"),
        (f"<tool_call>{CALL}", "has no </tool_call>"),
        (f"<tool_call>{CALL}</tool_", "has no </tool_call>"),
        (f"{CALL}</tool_call>", "no <tool_call> before it"),
        (CALL, "no action in your reply"),
        ("<tool_call>{'name': 'computer_use'}</tool_call>", "not valid JSON"),
        (f"<tool_call>{CALL[:-1]}</tool_call>", "not valid JSON: .* at character 62"),
        ("<tool_call>[1]</tool_call>", r"must be a JSON object, not \[1\]"),
        (f"<tool_call>{CALL} {CALL}</tool_call>", "not valid JSON: Extra data"),
        ("<tool_call>" + CALL.replace("_use", "") + "</tool_call>", 'no function "computer"'),
        ('<tool_call>{"name": "computer_use"}</tool_call>', "needs the field 'arguments'"),
        (
            '<tool_call>{"name": "computer_use", "arguments": "{\\"action\\": 1}"}</tool_call>',
            "'arguments' must be an object",
        ),
        (
            '<tool_call>{"name": "computer_use", "name": "x", "arguments": {}}</tool_call>',
            '"name" is there twice',
        ),
        ("<tool_call>" + '{"a":' * 100_000 + "</tool_call>", "not valid JSON"),
        ("<tool_call>" + '{"a":' + "9" * 5000 + "}</tool_call>", "not valid JSON"),
    ],
)
def test_broken_replies_say_what_is_wrong(text, said):
    with pytest.raises(ActionError, match=said):
        Qwen().parse(Reply(text), SCREEN)


def test_ends_and_questions_stand_alone():
    click = {"action": "left_click"}
    with pytest.raises(ActionError, match="ends the task and acts as well"):
        parsed(click, {"action": "terminate", "status": "success"})
    with pytest.raises(ActionError, match="Ask as the last thing"):
        parsed({"action": "ask", "text": "Which?"}, click)
    with pytest.raises(ActionError, match="at most 20"):
        parsed(*[click] * 21)


def test_what_the_model_is_told():
    text = Qwen().instructions(SCREEN, FULL)
    inside = text.split("<tools>\n")[1].split("\n</tools>")[0]
    tool = json.loads(inside)
    assert tool["function"]["name"] == "computer_use"
    assert "hscroll" in tool["function"]["parameters"]["properties"]["action"]["enum"]
    assert Qwen().tools(SCREEN, FULL) == []
    poor = Qwen(as_tools=True).tools(SCREEN, Capabilities())
    assert "hscroll" not in poor[0]["function"]["parameters"]["properties"]["action"]["enum"]
    assert "<tools>" not in Qwen(as_tools=True).instructions(SCREEN, FULL)
