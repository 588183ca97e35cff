import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.anthropic import Anthropic
from pagoda_agent.input.actions import (
    Ask,
    Click,
    CursorPosition,
    Done,
    Drag,
    Key,
    Move,
    Point,
    Press,
    Release,
    Screenshot,
    Scroll,
    Type,
    Wait,
    Zoom,
)
from pagoda_agent.models.dialogue import Reply
from tests.agent.dialect_cases import ANY_TEXT, CHORDS, HELD, SCREEN, calls, pixel_of, whole_pixels

LAST = "20251124"


def parsed(*inputs, version=LAST, text=""):
    return Anthropic(version).parse(calls(*(("computer", i) for i in inputs), text=text), SCREEN)


AT = Point(640.5 / 1280, 360.5 / 720)
HERE = [640, 360]
CASES = [
    ("20241022", {"action": "key", "text": "ctrl+Page_Up"}, Key(("ControlLeft", "PageUp"))),
    ("20241022", {"action": "type", "text": "a\tb"}, Type("a\tb")),
    ("20241022", {"action": "mouse_move", "coordinate": HERE}, Move(AT)),
    ("20241022", {"action": "left_click"}, Click(None)),
    ("20241022", {"action": "left_click_drag", "coordinate": HERE}, Drag((AT,))),
    ("20241022", {"action": "right_click"}, Click(None, "right")),
    ("20241022", {"action": "middle_click"}, Click(None, "middle")),
    ("20241022", {"action": "double_click"}, Click(None, count=2)),
    ("20241022", {"action": "screenshot"}, Screenshot()),
    ("20241022", {"action": "cursor_position"}, CursorPosition()),
    ("20250124", {"action": "left_click", "coordinate": HERE}, Click(AT)),
    ("20250124", {"action": "triple_click", "coordinate": HERE}, Click(AT, count=3)),
    (
        "20250124",
        {"action": "right_click", "coordinate": HERE, "text": "shift"},
        Click(AT, "right", modifiers=("ShiftLeft",)),
    ),
    (
        "20250124",
        {"action": "left_click_drag", "start_coordinate": HERE, "coordinate": HERE},
        Drag((AT, AT)),
    ),
    ("20250124", {"action": "left_mouse_down"}, Press(None)),
    ("20250124", {"action": "left_mouse_up"}, Release(None)),
    (
        "20250124",
        {"action": "scroll", "coordinate": HERE, "scroll_direction": "down", "scroll_amount": 5},
        Scroll(AT, dy=-5),
    ),
    (
        "20250124",
        {"action": "scroll", "scroll_direction": "right", "scroll_amount": 2, "text": "ctrl"},
        Scroll(None, dx=2, modifiers=("ControlLeft",)),
    ),
    ("20250124", {"action": "hold_key", "text": "w", "duration": 2.5}, Key(("KeyW",), hold=2.5)),
    ("20250124", {"action": "wait", "duration": 3}, Wait(3)),
    (
        "20251124",
        {"action": "zoom", "region": [0, 360, 1280, 720]},
        Zoom(Point(0, 0.5), Point(1, 1)),
    ),
]


@pytest.mark.parametrize(("version", "values", "action"), CASES)
def test_each_action_of_each_version(version, values, action):
    result = parsed(values, version=version, text="I act.")
    assert (result.actions, result.call_ids, result.thought) == ((action,), ("call-0",), "I act.")


@pytest.mark.parametrize(("version", "values", "action"), CASES)
def test_the_toolset_has_a_tool_for_each_action(version, values, action):
    rest = {name: value for name, value in values.items() if name != "action"}
    if values["action"] == "left_click_drag" and "start_coordinate" not in values:
        with pytest.raises(ActionError, match="needs the field 'start_coordinate'"):
            Anthropic("20260801").parse(calls((values["action"], rest)), SCREEN)
        return
    result = Anthropic("20260801").parse(calls((values["action"], rest)), SCREEN)
    assert result.actions == (action,)


def test_a_toolset_key_repeats():
    result = Anthropic("20260801").parse(calls(("key", {"text": "Down", "repeat": 4})), SCREEN)
    assert result.actions == (Key(("ArrowDown",), repeat=4),)


@given(whole_pixels(), HELD)
def test_any_pixel_comes_back(pixel, held):
    values = {"action": "left_click", "coordinate": list(pixel)}
    if held:
        values["text"] = "+".join(held)
    (click,) = parsed(values).actions
    assert isinstance(click, Click) and click.at is not None
    assert pixel_of(click.at) == pixel
    assert click.modifiers == held


@given(ANY_TEXT, CHORDS, st.integers(1, 100), st.sampled_from(["up", "down", "left", "right"]))
def test_texts_chords_and_scrolls_come_back(text, codes, amount, direction):
    typed, key, scroll = parsed(
        {"action": "type", "text": text},
        {"action": "key", "text": "+".join(codes)},
        {"action": "scroll", "scroll_direction": direction, "scroll_amount": amount},
    ).actions
    assert typed == Type(text)
    assert isinstance(key, Key) and set(key.codes) == set(codes)
    signs = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}[direction]
    assert scroll == Scroll(None, signs[0] * amount, signs[1] * amount)


@pytest.mark.parametrize(
    ("version", "values", "said"),
    [
        ("20241022", {"action": "scroll"}, 'no action "scroll"'),
        ("20241022", {"action": "left_click", "coordinate": HERE}, 'no field "coordinate"'),
        ("20250124", {"action": "zoom", "region": [0, 0, 1, 1]}, "no action"),
        (LAST, {"action": "left_click", "coordinate": [1280, 0]}, "x is 1280, .* from 0 to 1279"),
        (LAST, {"action": "left_click", "coordinate": [0, -1]}, "y is -1"),
        (LAST, {"action": "left_click", "coordinate": [1e9, 0]}, r"x is 1e\+09"),
        (LAST, {"action": "left_click", "coordinate": "1,2"}, "a list of 2 numbers"),
        (LAST, {"action": "zoom", "region": [10, 10, 10, 20]}, "region to zoom into is empty"),
        (LAST, {"action": "zoom", "region": [0, 0, 1281, 20]}, "x is 1281; .* from 0 to 1280"),
        (LAST, {"action": "zoom", "region": [0, 0, 20]}, "a list of 4 numbers"),
        (LAST, {"action": "hold_key", "text": "a", "duration": 11}, "from 0 to 10"),
        (LAST, {"action": "hold_key", "text": "a"}, "needs the field 'duration'"),
        (LAST, {"action": "wait", "duration": -1}, "from 0 to 60"),
        (
            LAST,
            {"action": "scroll", "scroll_direction": "in", "scroll_amount": 1},
            'one of up, down, left, right, not "in"',
        ),
        (
            LAST,
            {"action": "scroll", "scroll_direction": "up", "scroll_amount": 0},
            "'scroll_amount' is 0",
        ),
        (
            LAST,
            {"action": "scroll", "scroll_direction": "up", "scroll_amount": 1.5},
            "a whole number, not 1.5",
        ),
        (LAST, {"action": "key", "text": "Hyper_L"}, "no key 'Hyper_L'"),
        (LAST, {"action": "screenshot", "delay": 1}, 'no field "delay"'),
        (LAST, '{"action": "wait", ', "not valid JSON"),
        (LAST, "[]", "must be a JSON object"),
    ],
)
def test_wrong_input_says_what_is_wrong(version, values, said):
    with pytest.raises(ActionError, match=said):
        parsed(values, version=version)


def test_turns_without_calls_must_say_what_they_are():
    def read(text):
        return Anthropic().parse(Reply(text, finish_reason="end_turn"), SCREEN)

    assert read("All set.\nDONE: DNS is 8.8.8.8\nnow").actions == (
        Done(True, "DNS is 8.8.8.8\nnow"),
    )
    assert read("All set.\nDONE: yes").thought == "All set."
    assert read("FAILED: no network").actions == (Done(False, "no network"),)
    assert read("QUESTION: Which one?").actions == (Ask("Which one?"),)
    for text, said in [
        ("I will now click on it.", "no action in your reply. Call the tool"),
        ("", "empty"),
        ("DONE: a\nFAILED: b", "only one of"),
        ("QUESTION:", "question is empty"),
        ("We are DONE: no", "no action"),
    ]:
        with pytest.raises(ActionError, match=said):
            read(text)


def test_other_tools_and_acting_while_ending():
    with pytest.raises(ActionError, match='no tool "bash"'):
        Anthropic().parse(calls(("bash", {"command": "ls"})), SCREEN)
    with pytest.raises(ActionError, match='no action "bash"'):
        Anthropic("20260801").parse(calls(("bash", {"command": "ls"})), SCREEN)
    with pytest.raises(ActionError, match="ends the turn and acts as well"):
        parsed({"action": "left_click"}, text="DONE: yes")
