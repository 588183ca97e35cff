"""Whatever a model writes: the cut of the stream changes nothing, and no character is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.text.parsers.select import FAMILIES, parser_for
from tests.unit.text.parsers.parsing import TOOLS, parse, split, text_spans
from tests.unit.text.parsers.test_families import CASES

# No markup has such letters, so they are content wherever they stand, each one once.
LETTERS = st.text("αβγδεζηθ", min_size=1, max_size=4)
PIECES = {
    "think": ["<think>", "</think>", "<thi", "nk>", "</"],
    "json": ['{"name": "', 'now"', ', "arguments": {', '"city": "', '"', "}", "}}", "[", "]",
             ",", ":", "{", "\\", ', "id": "x1"}', '{"name": "now", "arguments": {}}',
             '{"type": "function", "name": "now", "parameters": {'],
    "hermes": ["<tool_call>", "</tool_call>", "<tool_", "call>",
               '<tool_call>{"name": "weather", "arguments": {"city": "'],
    "xml": ["<function=", "<function=now>", "</function>", "<parameter=", "<parameter=city>",
            "<parameter=days>", "\n</parameter>", "</parameter>", "<para", ">", "True",
            "<tool_call><function=weather><parameter=city>"],
    "glm": ["weather", "now", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "gemma4": ["<|channel>", "thought\n", "<channel|>", "<|tool_call>", "<tool_call|>", "call:now{",
               "city:", '<|"|>', "}", "{", "[", "]", ",", ":", "true", "12", "<|"],
    "harmony": ["<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary",
                " to=functions.now", "<|constrain|>json", "<|message|>", "<|end|>", "<|call|>",
                "<|return|>", "<|channel|>commentary to=functions.now<|message|>{"],
    "deepseek": ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "now",
                 "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "function", "\n```json\n", "\n```"],
    "kimi": ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
             "functions.", "now", ":0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
             "<|tool_call"],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>", "[", "now(", "weather(", "city=", "'",
             '"', "\\", "\\u00e9", ")", "]", ",", "(", "{", "}", ":", "True", "12", "<|tool_call_",
             "<|tool_call_start|>[weather(city="],
    "llama3": ["<|python_tag|>", ";"],
    "seed": ["<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>", "<seed:",
             "<seed:tool_call>\n<function=weather>\n<parameter=city>"],
    "command": ["<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>",
                "<|START_RESPONSE|>", "<|END_RESPONSE|>", "[", "]", ",", "}", '"', "<|START_",
                '{"tool_call_id": "0", "tool_name": "', '{"tool_name": "', "now", '"city": "',
                '", "parameters": {', '{"tool_name": "now", "parameters": {}}'],
    "dsml": ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
             '<｜DSML｜invoke name="now">', "</｜DSML｜invoke>",
             '<｜DSML｜parameter name="city" string="', 'true">',
             'false">', "2",
             "</｜DSML｜parameter>", "<｜DSML", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"],
    "ernie": ["<response>", "</response>", "<resp"],
    "hunyuan": ["<answer>", "</answer>", "<ans", "<tool_calls>", "</tool_calls>", "[", "]"],
    "mistral": ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "now", "[ARGS]", "[TOOL_", "CALLS]",
                "[CALL_ID]a1[ARGS]"],
}  # fmt: skip
USED = {
    "none": [],
    "hermes": ["think", "json", "hermes", "xml", "glm"],
    "qwen3_coder": ["think", "json", "hermes", "xml"],
    "gemma4": ["gemma4"],
    "harmony": ["harmony", "json"],
    "deepseek_r1": ["think", "deepseek", "json"],
    "deepseek_v3": ["think", "deepseek", "json"],
    "deepseek_v32": ["think", "dsml"],
    "kimi_k2": ["think", "kimi", "json"],
    "lfm2": ["think", "lfm2", "json"],
    "llama3": ["llama3", "json"],
    "mistral": ["mistral", "json"],
    "seed_oss": ["seed", "xml"],
    "command": ["command"],
    "ernie45": ["think", "json", "hermes", "xml", "glm", "ernie"],
    "hunyuan_a13b": ["think", "json", "hunyuan"],
    "generic": ["think", "hermes", "xml", "glm", "json", "gemma4", "deepseek", "mistral"],
}
PROMPTS = st.sampled_from(
    ["", "<|im_start|>assistant\n<think>\n", "<|turn>model\n<|channel>thought\n",
     "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"]
)  # fmt: skip
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def replies(family: str):
    markup = [piece for name in USED[family] for piece in PIECES[name]]
    return st.lists(st.sampled_from([*markup, " ", "\n"]) | LETTERS, max_size=24).map("".join)


def test_every_family_is_fuzzed():
    names = {parser_for(None, name, name).name for name in FAMILIES}
    assert names == set(USED)


@pytest.mark.parametrize("name", USED)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), cuts=CUTS, prompt=PROMPTS, tools=st.sampled_from([TOOLS, []]))
def test_any_cut_gives_the_same_and_nothing_is_lost(name, data, cuts, prompt, tools):
    reply = data.draw(replies(name))
    family = parser_for(None, name, name)
    whole = parse(family, reply, prompt, tools)
    assert parse(family, split(reply, cuts), prompt, tools) == whole
    assert parse(family, list(reply), prompt, tools) == whole
    spans = text_spans(family, split(reply, cuts), prompt, tools)
    text = "".join(part for kind, part, *_ in whole if kind == "text")
    assert "".join(reply[start:end] for start, end in spans) == text
    ends = [place for span in spans for place in span]
    assert sorted(set(ends)) == ends
    content = "".join(part for kind, *parts in whole for part in (
        parts if kind in ("text", "reasoning") else (kind, *parts)
    ))  # fmt: skip
    assert [c for c in content if c in "αβγδεζηθ"] == [c for c in reply if c in "αβγδεζηθ"]


@pytest.mark.parametrize("name", USED)
@settings(deadline=None, max_examples=60)
@given(text=st.text(st.characters(exclude_characters="<[")), cuts=CUTS)
def test_text_without_markup_comes_through_unchanged(name, text, cuts):
    family = parser_for(None, name, name)
    assert parse(family, split(text, cuts)) == ([("text", text)] if text else [])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "generic"])
@settings(deadline=None, max_examples=60)
@given(data=st.data(), tools=st.sampled_from([TOOLS, []]))
def test_markup_that_makes_no_call_is_text(name, data, tools):
    """Where only text comes out, all of it does; tags of thought are markup only as the first."""
    reply = "α" + data.draw(replies(name))
    whole = parse(parser_for(None, name, name), reply, "", tools)
    if all(kind == "text" for kind, *_ in whole):
        assert whole == [("text", reply)]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), case=st.sampled_from(CASES), cuts=CUTS)
def test_damaged_replies(data, case, cuts):
    name, reply, _ = case.values
    start = data.draw(st.integers(0, len(reply)))
    length = data.draw(st.integers(0, 12))
    damaged = reply[:start] + data.draw(LETTERS) + reply[start + length :]
    family = parser_for(None, name, name)
    whole = parse(family, damaged)
    assert parse(family, split(damaged, cuts)) == whole
    assert parse(family, list(damaged)) == whole
