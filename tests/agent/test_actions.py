"""Actions as journals and events hold them."""

import json

import pytest

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
    from_json,
    to_json,
)

AT = Point(0.25, 0.5)
ACTIONS = [
    Move(AT), Click(None), Click(AT, "right", 2, ("ShiftLeft",)), Drag((AT, Point(1, 1))),
    Press(AT), Release(None), Scroll(AT, dy=-3), Type("a\n"), Key(("ControlLeft", "KeyC"), 2, 0.5),
    Wait(1.5), Screenshot(), Zoom(AT, Point(0.5, 0.75)), CursorPosition(), Power("hold"),
    HidReset(), Ask("Which?"), Done(False, "No."),
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_an_action_survives_being_written_down(action):
    written = json.loads(json.dumps(to_json(action)))
    assert written["action"] == type(action).__name__
    assert from_json(written) == action
