"""Whatever a model writes, a dialect understands it whole or says what is wrong with it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.registry import DIALECTS, dialect_named
from pagoda_agent.input.actions import check
from pagoda_agent.models.dialogue import Parsed, Reply
from tests.agent.dialect_cases import JSON, SCREEN, calls

SAMPLES = {
    "qwen": '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", '
    '"coordinate": [500, 500]}}\n</tool_call>',
    "nanokvm": "# see\nmouse 500 500 1\ntypestr a 'b' \"c\"\nkeyboard ctrl+c",
    "uitars": "Thought: t\nAction: type(content='a\\'b')\nclick(point='<point>5 5</point>')",
}
TOOLS = {
    "qwen": ("computer_use", {"action": "left_click", "coordinate": [5, 5]}),
    "anthropic": ("computer", {"action": "left_click", "coordinate": [5, 5]}),
    "openai": ("computer", {"actions": [{"type": "move", "x": 5, "y": 5}]}),
}


def read(name, reply):
    """Parsed, or the error's text; any other exception fails the test."""
    try:
        parsed = dialect_named(name)().parse(reply, SCREEN)
    except ActionError as error:
        assert 10 < len(str(error)) < 1000
        return str(error)
    assert isinstance(parsed, Parsed) and parsed.actions
    for action in parsed.actions:
        check(action)
    return parsed


@pytest.mark.parametrize("name", list(DIALECTS))
def test_any_text(name):
    @settings(max_examples=40)
    @given(st.text(max_size=200))
    def run(text):
        read(name, Reply(text))

    run()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_reply_with_something_cut_or_put_in(name):
    sample = SAMPLES[name]
    assert isinstance(read(name, Reply(sample)), Parsed)

    @settings(max_examples=80)
    @given(st.integers(0, len(sample)), st.integers(0, 6), st.text(max_size=5))
    def run(place, length, text):
        read(name, Reply(sample[:place] + text + sample[place + length :]))

    run()


@pytest.mark.parametrize("name", TOOLS)
def test_any_arguments(name):
    tool, good = TOOLS[name]
    assert isinstance(read(name, calls((tool, good))), Parsed)

    @settings(max_examples=80)
    @given(JSON, st.sampled_from(["", "action", "coordinate", "actions", "text", "keys", "x"]))
    def run(value, field):
        given = {**good, field: value} if field else value
        read(name, calls((tool, json.dumps(given))))

    run()


@pytest.mark.parametrize("name", TOOLS)
def test_any_text_as_arguments(name):
    @settings(max_examples=40)
    @given(st.text(max_size=60))
    def run(text):
        read(name, calls((TOOLS[name][0], text or " ")))

    run()


@pytest.mark.parametrize("name", list(DIALECTS))
@pytest.mark.parametrize("piece", ["a", "\n", "<tool_call>", "'", "(", "\\", "{", "typestr x\n"])
def test_a_megabyte_is_refused_in_few_words(name, piece):
    text = piece * (1_000_000 // len(piece))
    assert isinstance(read(name, Reply(text)), str)
    assert isinstance(read(name, Reply("Action: type(content='" + text)), str)
    if name in TOOLS:
        assert isinstance(read(name, calls((TOOLS[name][0], text))), str)


@pytest.mark.parametrize("name", SAMPLES)
def test_half_a_reply_is_not_read(name):
    assert "cut off" in read(name, Reply(SAMPLES[name], finish_reason="length"))


@pytest.mark.parametrize("name", TOOLS)
def test_half_a_call_is_not_read(name):
    tool, good = TOOLS[name]
    reply = calls((tool, good))
    assert "cut off" in read(name, Reply("", reply.tool_calls, finish_reason="length"))


@pytest.mark.parametrize("name", list(DIALECTS))
def test_results_without_calls(name):
    dialect = dialect_named(name)()
    (one,) = dialect.result((), ["done"])
    assert (one.role, one.text) == ("user", "Result of your action: done")
    (two,) = dialect.result((), ["done", "failed"])
    assert "1. done\n2. failed" in two.text
    assert dialect.result((), []) == []
