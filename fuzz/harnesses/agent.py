"""What a model wants done, in every dialect: actions within the grammar, or an ActionError.

Sources: agent/src/pagoda_agent/dialects/, actions.py.
"""

import json
from functools import cache

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.registry import DIALECTS, dialect_named
from pagoda_agent.input.actions import check, from_json, to_json
from pagoda_agent.input.keys import KEYS
from pagoda_agent.models.dialogue import Dialect, Reply, ToolCall

SCREEN = (1280, 720)
WORDS = tuple(
    word.encode()
    for word in (
        "Action: ", "Thought: ", "click(point='<point>5 5</point>')", "<point>", "</point>",
        "<|box_start|>(1,2)<|box_end|>", "<bbox>1 2 3 4</bbox>", "hotkey(key='ctrl c')",
        "type(content='", "scroll(direction='down')", "finished()", "call_user()", "wait()",
        "<tool_call>", "</tool_call>", '{"name": "computer_use", "arguments": {', '"action": ',
        '"coordinate": [500, 500]', '"left_click"', '"key"', '"keys": ["ctrl", "c"]', '"text": ',
        '"pixels": ', '"time": ', '"status": "success"', '"actions": [', '"type": "click"',
        '"x": 1', '"y": 1', '"button": "left"', '"path": [{"x": 1, "y": 2}]', '"scroll_x": 0',
        '"scroll_y": 100', '"duration": 1', '"scroll_direction": "up"', '"scroll_amount": 3',
        "mouse 500 500 1", "typestr ", "keyboard ctrl+c", "sleep 1", "DONE: ", "FAILED: ",
        "QUESTION: ", "<think>", "</think>", "# ", "\n", "'", '"', "\\", "\\n", "{", "}", "[", "]",
        ",", "1e999", "-1", "NaN", "true", "null", "\\ud800", "{{secret:A}}", "٣", "\u2028", "",
        "terminate", "answer", "wheel", "drag", "power", "reset", *sorted(KEYS)[:40],
    )
)  # fmt: skip
_NAMES = tuple(DIALECTS)
_TOOLS = ("computer_use", "computer", "x", "")


@cache
def _dialects() -> tuple[tuple[str, Dialect], ...]:
    return tuple((name, dialect_named(name)()) for name in _NAMES)


def fuzz_agent(data: bytes) -> None:
    """The first byte says which tool is called; a text is read as a reply in words as well."""
    if not data:
        return
    text = data[1:].decode("utf-8", "replace")
    call = ToolCall("call-1", _TOOLS[data[0] % len(_TOOLS)], text)
    for name, dialect in _dialects():
        for reply in (Reply(text), Reply("", (call,), finish_reason="tool_calls")):
            _read(name, dialect, reply)


def _read(name: str, dialect: Dialect, reply: Reply) -> None:
    try:
        parsed = dialect.parse(reply, SCREEN)
    except ActionError as error:
        assert 0 < len(str(error)) < 1000, name
        return
    assert parsed.actions, name
    for action in parsed.actions:
        check(action)
        assert from_json(json.loads(json.dumps(to_json(action)))) == action, name
    outcomes = ["done"] * len(parsed.actions)
    assert dialect.result(parsed.call_ids, outcomes), name
