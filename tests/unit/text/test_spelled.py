"""Tools in the prompts of templates that have no place for them."""

from typing import Any

import pytest

from pagoda.base.errors import RequestError
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from pagoda.text.template.spelled import shows_tools
from tests.unit.text.parsers.parsing import TOOLS, parse
from tests.unit.text.templates import CHATML, GEMMA3, LLAMA3, MISTRAL, QWEN_TOOLS, R1, VISION

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TURN = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def render(source: str, *messages: Any, tools: Any = TOOLS, **options: Any) -> str:
    template = ChatTemplate({"default": source}, {}, **options)
    return template.render(messages, tools=tools, call_form=parser_for(source).form.calls)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (CHATML, False), (MISTRAL, False), (R1, False), (VISION, False),
        (LLAMA3, True), (QWEN_TOOLS, True),
        ("{{ 'no tools here' }}{# tools #}", False), ("{% set tools = 1 %}{{ tools }}", False),
        ("{% if tools is defined %}{{ tools }}{% endif %}", True),
    ],
)  # fmt: skip
def test_which_templates_show_tools(source, shown):
    assert shows_tools(source) == shown


@pytest.mark.parametrize("source", [LLAMA3, QWEN_TOOLS])
def test_a_template_that_shows_tools_is_left_alone(source):
    messages = (USER, TURN, RESULT)
    alone = ChatTemplate({"default": source}, {}).render(messages, tools=TOOLS)
    assert render(source, *messages) == alone


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (CHATML, "none+hermes"), (GEMMA3, "none+hermes"), (CHATML + "</think>", "generic+hermes"),
        ("tools: " + CHATML, "generic+hermes"), (QWEN_TOOLS, "hermes"), (None, "none"),
        ("<｜tool▁sep｜> ```json" + R1, "deepseek_r1"),
    ],
)  # fmt: skip
def test_how_calls_are_read(source, name):
    assert parser_for(source).name == name


def test_the_parser_reads_what_the_history_says():
    spelled = render(CHATML, USER, TURN).partition("<|im_start|>assistant\n")[2]
    assert '"id": "c1"' in spelled
    parts = parse(parser_for(CHATML), spelled.partition("<|im_end|>")[0])
    assert parts == [("weather", "{}")]


def test_a_template_with_calls_of_its_own_gets_the_description_alone():
    source = "<｜tool▁sep｜> ```json" + R1.replace("'user'", "'user' or message.role == 'system'")
    prompt = render(source, USER, TURN, RESULT)
    assert '"name": "weather"' in prompt
    assert "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION\n" in prompt
    assert "<|tool|>weather\n{}" in prompt and "<tool_response" not in prompt


def test_gemma_3():
    """Tools stand with the system's words in the user's first turn; pictures have their mark."""
    system = {"role": "system", "content": "Be brief."}
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    asks = {"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}
    kinds = {"image": "<start_of_image>"}
    prompt = render(GEMMA3, system, asks, TURN, RESULT, placeholders=kinds)
    first, reply, result, rest = prompt.split("<end_of_turn>\n")
    assert first.startswith("<start_of_turn>user\nBe brief.\n\n") and '"name": "weather"' in first
    assert first.endswith("\n\n<start_of_image>What is it?")
    assert reply.startswith("<start_of_turn>model\n<tool_call>") and '"id": "c1"' in reply
    assert result == (
        '<start_of_turn>user\n<tool_response id="c1" name="weather">\nrain\n</tool_response>'
    )
    assert rest == "<start_of_turn>model\n"


def test_users_and_assistants_take_turns():
    """Results in a row are a turn; Mistral's templates refuse two of one role."""
    calls = {**TURN, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    prompt = render(MISTRAL, USER, calls, RESULT, {**RESULT, "tool_call_id": "c2"}, USER)
    assert prompt.endswith(
        '<tool_response id="c1" name="weather">\nrain\n</tool_response>\n'
        '<tool_response id="c2" name="weather">\nrain\n</tool_response>\nHi [/INST]'
    )


def test_pictures_in_results_stay_in_their_place():
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    seen = {**RESULT, "content": [{"type": "text", "text": "A cat:"}, picture]}
    prompt = render(VISION, USER, TURN, seen, placeholders={"image": "<|image|>"})
    assert '<tool_response id="c1" name="weather">\nA cat:<|image|>\n</tool_response>' in prompt


def test_results_without_an_id_or_content():
    assert "<tool_response>\n</tool_response>" in render(CHATML, USER, TURN, {"role": "tool"})
    called = {"role": "function", "name": "weather", "content": "sun"}
    assert '<tool_response name="weather">\nsun\n' in render(CHATML, USER, called)


def test_without_a_form_tools_are_left_to_the_template():
    template = ChatTemplate({"default": CHATML}, {})
    assert "weather" not in template.render([USER], tools=TOOLS)
    assert parser_for(CHATML, tool_calls="none").form.calls is None


def test_what_is_no_message_is_still_an_error():
    with pytest.raises(RequestError, match="is no message"):
        render(CHATML, "hi")
