import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.openai import OpenAI
from pagoda_agent.input.actions import (
    Click,
    Done,
    Drag,
    Key,
    Move,
    Point,
    Screenshot,
    Scroll,
    Type,
    Wait,
)
from pagoda_agent.models.dialogue import Reply
from tests.agent.dialect_cases import ANY_TEXT, CHORDS, HELD, SCREEN, calls, pixel_of, whole_pixels


def parsed(*actions, checks=()):
    given = {"actions": list(actions), "pending_safety_checks": list(checks)}
    return OpenAI().parse(calls(("computer", given)), SCREEN)


AT = Point(640.5 / 1280, 360.5 / 720)
HERE = {"x": 640, "y": 360}
CASES = [
    ({"type": "click", "button": "left", **HERE}, Click(AT)),
    ({"type": "click", "button": "wheel", **HERE, "keys": None}, Click(AT, "middle")),
    (
        {"type": "click", "button": "back", **HERE, "keys": ["CTRL", "SHIFT"]},
        Click(AT, "back", modifiers=("ControlLeft", "ShiftLeft")),
    ),
    ({"type": "double_click", **HERE, "keys": []}, Click(AT, count=2)),
    ({"type": "drag", "path": [HERE, HERE, HERE]}, Drag((AT, AT, AT))),
    ({"type": "keypress", "keys": ["CTRL", "A"]}, Key(("ControlLeft", "KeyA"))),
    ({"type": "move", **HERE}, Move(AT)),
    ({"type": "screenshot"}, Screenshot()),
    ({"type": "scroll", **HERE, "scroll_x": 0, "scroll_y": 300}, Scroll(AT, dy=-3)),
    ({"type": "scroll", **HERE, "scroll_x": -120, "scroll_y": 0}, Scroll(AT, dx=-1)),
    ({"type": "type", "text": "é\n"}, Type("é\n")),
    ({"type": "wait"}, Wait(2)),
]


@pytest.mark.parametrize(("values", "action"), CASES)
def test_each_action_is_what_the_sdk_knows(values, action):
    types = pytest.importorskip("openai.types.responses.computer_action")
    from pydantic import TypeAdapter

    TypeAdapter(types.ComputerAction).validate_python(values)
    assert parsed(values).actions == (action,)


def test_a_batch_belongs_to_one_call():
    result = parsed(*(values for values, _ in CASES[:3]))
    assert result.call_ids == ("call-0",) * 3
    told = OpenAI().result(result.call_ids, ["one", "two", "three"], consented=True)
    assert [(m.tool_call_id, m.text, m.consented) for m in told] == [
        ("call-0", "one\ntwo\nthree", True)
    ]


def test_safety_checks_wait_for_the_user():
    check = {"id": "sc_1", "code": "malicious_instructions", "message": "The page gives orders."}
    result = parsed({"type": "wait"}, checks=[check, {"id": "sc_2", "code": "domain"}])
    assert result.warnings == (
        "Safety check by the model's provider: The page gives orders.",
        "Safety check by the model's provider: domain",
    )
    assert parsed({"type": "wait"}).warnings == ()
    assert not OpenAI().result(("call-0",), ["denied"])[0].consented


@given(whole_pixels(), whole_pixels(), HELD)
def test_any_pixel_comes_back(first, second, held):
    path = [{"x": first[0], "y": first[1]}, {"x": second[0], "y": second[1]}]
    (drag,) = parsed({"type": "drag", "path": path, "keys": list(held)}).actions
    assert isinstance(drag, Drag)
    assert [pixel_of(point) for point in drag.path] == [first, second]
    assert drag.modifiers == held


@given(ANY_TEXT, CHORDS, st.integers(-9900, 9900).filter(bool))
def test_texts_chords_and_scrolls_come_back(text, codes, pixels):
    scroll = {"type": "scroll", **HERE, "scroll_x": 0, "scroll_y": pixels}
    typed, key, turned = parsed(
        {"type": "type", "text": text}, {"type": "keypress", "keys": list(codes)}, scroll
    ).actions
    assert typed == Type(text)
    assert isinstance(key, Key) and set(key.codes) == set(codes)
    assert isinstance(turned, Scroll)
    assert abs(-turned.dy * 100 - pixels) <= 50 or abs(turned.dy) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"type": "tap", **HERE}, 'no action "tap"'),
        ({"type": "click", **HERE}, "needs the field 'button'"),
        ({"type": "click", "button": "middle", **HERE}, "one of left, right, wheel"),
        ({"type": "click", "button": "left", "x": 1}, "needs the field 'y'"),
        ({"type": "click", "button": "left", "x": "1", "y": 2}, "'x' must be a number"),
        ({"type": "click", "button": "left", "x": 1280, "y": 2}, "In click, x is 1280"),
        ({"type": "click", "button": "left", **HERE, "z": 1}, 'no field "z"'),
        ({"type": "move", **HERE, "keys": ["SHIFT"]}, "move cannot hold keys"),
        ({"type": "drag", "path": [HERE]}, "2 positions or more"),
        ({"type": "drag", "path": [[1, 2], [3, 4]]}, "'path' must be a list of objects"),
        ({"type": "drag", "path": [HERE, {"x": 1, "y": 720}]}, "y is 720"),
        ({"type": "drag", "path": [HERE, {**HERE, "t": 1}]}, 'no field "t"'),
        ({"type": "keypress", "keys": ["BOGUS"]}, "no key 'BOGUS'"),
        ({"type": "scroll", **HERE, "scroll_x": 0, "scroll_y": 0}, "goes nowhere"),
    ],
)
def test_wrong_actions_say_what_is_wrong(values, said):
    with pytest.raises(ActionError, match=said):
        parsed(values)
    # One wrong action keeps the whole batch from being carried out.
    with pytest.raises(ActionError, match=said):
        parsed({"type": "wait"}, values)


def test_other_replies():
    assert OpenAI().parse(Reply("DONE: it is set"), SCREEN).actions == (Done(True, "it is set"),)
    for reply, said in [
        (calls(("computer", {"actions": []})), "has no actions"),
        (calls(("computer", {"actions": {"type": "wait"}})), "a list of objects"),
        (calls(("computer", {"action": {"type": "wait"}})), "needs the field 'actions'"),
        (calls(("shell", {"actions": []})), 'no tool "shell"'),
        (calls(("computer", {"actions": [{"type": "wait"}]}), text="DONE: x"), "acts as well"),
        (Reply("Next I click."), "no action in your reply"),
    ]:
        with pytest.raises(ActionError, match=said):
            OpenAI().parse(reply, SCREEN)
