"""Replies of each family, written after its format, and what they mean."""

import json

import pytest

from pagoda.text.parsers.select import parser_for
from tests.unit.text.parsers.deepseek import DSML
from tests.unit.text.parsers.hunyuan import HUNYUAN
from tests.unit.text.parsers.kimi import KIMI, OUTSIDE
from tests.unit.text.parsers.lfm2 import LFM2
from tests.unit.text.parsers.parsing import TOOLS, parse

PARIS = '{"city": "Paris"}'
OPENED = "<|im_start|>assistant\n<think>\n"
B, E = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
b, e, sep = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def text(value):
    return ("text", value)


def thought(value):
    return ("reasoning", value)


HERMES = {
    "a call alone": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [("weather", PARIS)],
    ),
    "thought, text and two calls": (
        "<think>Hm.\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        [thought("Hm.\n"), text("\n\nLet me see."), ("weather", PARIS), ("now", "{}")],
    ),
    "space around calls is no content": (
        '<think>Hm.</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n ',
        [thought("Hm."), ("now", "{}")],
    ),
    "the closing tag is missing": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}',
        [("weather", PARIS)],
    ),
    "a bracket is missing": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}</tool_call>',
        [("weather", PARIS)],
    ),
    "tags and brackets in strings": (
        '<tool_call>{"name": "weather", "arguments": {"city": "}</tool_call>\\"{"}}</tool_call>.',
        [("weather", '{"city": "}</tool_call>\\"{"}'), text(".")],
    ),
    "arguments before the name": (
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>',
        [("weather", PARIS)],
    ),
    "arguments as a string": (
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        [("weather", PARIS)],
    ),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', [("now", "{}")]),
    "a list of calls": (
        '<tool_call>[{"name": "weather", "arguments": {"city": "Paris"}},\n'
        '{"name": "now", "arguments": {}}]</tool_call>',
        [("weather", PARIS), ("now", "{}")],
    ),
    "XML after all": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>",
        [("weather", PARIS)],
    ),
    "text between and behind": (
        'a <tool_call>{"name": "now", "arguments": {}}</tool_call> b'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call> c',
        [text("a"), ("now", "{}"), text(" b"), ("now", "{}"), text(" c")],
    ),
    "no JSON": ("<tool_call>sunny</tool_call>", [text("<tool_call>sunny</tool_call>")]),
    "broken at once": (
        '<tool_call>{"name": "weather", "arguments": {city: 1}}</tool_call>',
        [text('<tool_call>{"name": "weather", "arguments": {city: 1}}</tool_call>')],
    ),
    "no name": (
        '<tool_call>{"arguments": {"city": "Paris"}}</tool_call>',
        [text('<tool_call>{"arguments": {"city": "Paris"}}</tool_call>')],
    ),
    "keys that no call has": (
        '<tool_call>{"why": "so", "name": "now", "arguments": {}}</tool_call>',
        [text('<tool_call>{"why": "so", "name": "now", "arguments": {}}</tool_call>')],
    ),
    "broken, then right": (
        '<tool_call>oops <tool_call>{"name": "now", "arguments": {}}</tool_call>',
        [text("<tool_call>oops "), ("now", "{}")],
    ),
    "what is wrong later stays in the arguments": (
        '<tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>',
        [("weather", '{"city": Paris}')],
    ),
    "cut off in the arguments": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Par',
        [("weather", '{"city": "Par')],
    ),
    "cut off before": ('<tool_call>{"name": "wea', [text('<tool_call>{"name": "wea')]),
    "a known tool called in mid-thought": (
        '<think>I call it. <tool_call>{"name": "now", "arguments": {}}</tool_call>',
        [thought("I call it. "), ("now", "{}")],
    ),
    "an example in mid-thought": (
        '<think>As <tool_call>{"name": "f", "arguments": {}}</tool_call>?</think>No.',
        [
            thought('As <tool_call>{"name": "f", "arguments": {}}</tool_call>?'),
            text("No."),
        ],
    ),
}  # fmt: skip

QWEN3_CODER = {
    "types after the schema": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n"
        '<parameter=places>\n["a", "b"]\n</parameter>\n<parameter=anything>\n{"x": 1}\n'
        "</parameter>\n<parameter=unknown>\n7\n</parameter>\n<parameter=units>\nC\n</parameter>\n"
        "</function>\n</tool_call>",
        [("weather", '{"city": "New\\nYork", "days": 3, "hourly": true, "places": ["a", "b"], '
          '"anything": {"x": 1}, "unknown": "7", "units": "C"}')],
    ),
    "values that do not fit are strings": (
        "<tool_call><function=weather><parameter=days>soon</parameter>"
        "<parameter=hourly>null</parameter><parameter=city>42</parameter></function></tool_call>",
        [("weather", '{"days": "soon", "hourly": null, "city": "42"}')],
    ),
    "one new line on either side is markup": (
        "<tool_call><function=weather><parameter=city>\n\n a\"\\b\n\n</parameter></function>"
        "</tool_call>",
        [("weather", '{"city": "\\n a\\"\\\\b\\n"}')],
    ),
    "no parameters": ("<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", "{}")]),
    "the outer tag is forgotten": (
        "Well.\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [text("Well."), ("weather", PARIS)],
    ),
    "two calls": (
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
        "</tool_call>",
        [("now", "{}"), ("weather", PARIS)],
    ),
    "JSON after all": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>',
        [("weather", PARIS)],
    ),
    "text in the tag": (
        "<tool_call><function=now>Hello</function>",
        [text("<tool_call><function=now>Hello</function>")],
    ),
    "half a call stays open": (
        "<tool_call><function=weather><parameter=city>Paris</parameter> and so on",
        [("weather", '{"city": "Paris"'), text(" and so on")],
    ),
}  # fmt: skip

GEMMA4 = {
    "thought and text": (
        "<|channel>thought\nHm.\n<channel|>Well.", [thought("Hm."), text("Well.")]
    ),
    "thought later on": (
        "Wait.<|channel>thought\nHm.\n<channel|>Yes.",
        [text("Wait."), thought("Hm."), text("Yes.")],
    ),
    "a call": (
        '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:-3,f:1.5,hourly:true,x:null,'
        'places:[<|"|>a, b<|"|>,<|"|>"c"<|"|>],anything:{k:{},<|"|>l<|"|>:[]}}<tool_call|>',
        [("weather", '{"city": "Paris", "days": -3, "f": 1.5, "hourly": true, "x": null, '
          '"places": ["a, b", "\\"c\\""], "anything": {"k": {}, "l": []}}')],
    ),
    "two calls": (
        '<|tool_call>call:now{}<tool_call|><|tool_call>call:weather{city:<|"|>Paris<|"|>}'
        "<tool_call|>",
        [("now", "{}"), ("weather", PARIS)],
    ),
    "strings without quotes": (
        "<|tool_call>call:weather{city:Paris}<tool_call|>", [("weather", PARIS)]
    ),
    "no call": (
        "<|tool_call>weather in Paris<tool_call|>.", [text("<|tool_call>weather in Paris.")]
    ),
    "cut off": (
        '<|tool_call>call:weather{city:<|"|>Par', [("weather", '{"city": "Par')]
    ),
}  # fmt: skip

HARMONY = {
    "thought and answer": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."
        "<|return|>",
        [thought("Hm."), text("Hi.")],
    ),
    "a call after a preamble": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [thought("Hm."), text("I look."), ("weather", PARIS)],
    ),
    "the recipient beside the role, two calls": (
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city":'
        ' "Paris"}<|call|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{}',
        [("weather", PARIS), ("now", "{}")],
    ),
    "the reply begins with the recipient": (
        " to=functions.now<|channel|>commentary<|message|>{}<|call|>", [("now", "{}")]
    ),
    "tools of other kinds are thought": (
        "<|channel|>analysis to=python code<|message|>1+1<|call|>", [thought("1+1")]
    ),
    "no JSON": (
        "<|channel|>commentary to=functions.weather<|message|>in Paris<|call|>", [text("in Paris")]
    ),
    "no markup": ("Hello <b>", [text("Hello <b>")]),
    "cut off in a header": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|chan", [thought("Hm.")]
    ),
}  # fmt: skip

DEEPSEEK = {
    "fenced": (
        f"I look.\n\n{B}{b}function{sep}weather\n```json\n{PARIS}\n```{e}\n"
        f"{b}function{sep}now\n```json\n{{}}\n```{e}{E}",
        [text("I look."), ("weather", PARIS), ("now", "{}")],
    ),
    "bare": (
        f"{B}{b}weather{sep}{PARIS}{e}{b}now{sep}{{}}{e}{E}", [("weather", PARIS), ("now", "{}")]
    ),
    "thought first": (
        f"<think>Hm.</think>{B}{b}now{sep}{{}}{e}{E}", [thought("Hm."), ("now", "{}")]
    ),
    "no JSON": (f"{B}{b}weather{sep}Paris{e}{E}", [text(f"{B}{b}weather{sep}Paris")]),
    "a fence in a string": (
        f'{B}{b}function{sep}weather\n```json\n{{"city": "```"}}\n```{e}{E}',
        [("weather", '{"city": "```"}')],
    ),
    "the markers' ends are missing": (f"{B}{b}weather{sep}{PARIS}", [("weather", PARIS)]),
}  # fmt: skip

LLAMA3 = {
    "a call": ('{"name": "weather", "parameters": {"city": "Paris"}}', [("weather", PARIS)]),
    "with its type": (
        '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}',
        [("weather", PARIS)],
    ),
    "several": (
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; '
        '{"name": "now", "parameters": {}}',
        [("weather", PARIS), ("now", "{}")],
    ),
    "several, bare": (
        '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}};',
        [("weather", PARIS), ("now", "{}")],
    ),
    "other JSON": ('{"name": "Ada", "age": 36}', [text('{"name": "Ada", "age": 36}')]),
    "a name that is no tool": (
        '{"name": "Ada", "parameters": {}}', [text('{"name": "Ada", "parameters": {}}')]
    ),
    "a set": ("S = {1, 2}", [text("S = {1, 2}")]),
}  # fmt: skip

MISTRAL = {
    "a list": (
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "now", "arguments": {}, "id": "abcdefghj"}]',
        [("weather", PARIS), ("now", "{}")],
    ),
    "names": (
        f"I look.[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]now[ARGS]{{}}",
        [text("I look."), ("weather", PARIS), ("now", "{}")],
    ),
    "ids": (f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{PARIS}", [("weather", PARIS)]),
    "neither": (f"[TOOL_CALLS]weather{PARIS}", [("weather", PARIS)]),
    "thought": ("[THINK]Hm.[/THINK]Well.", [thought("Hm."), text("Well.")]),
    "no call": ("[TOOL_CALLS]sunny", [text("[TOOL_CALLS]sunny")]),
}  # fmt: skip

GENERIC = {
    "GLM": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        [("weather", '{"city": "Paris", "days": 3}')],
    ),
    "GLM 4.7": ("<tool_call>now</tool_call>", [("now", "{}")]),
    "Seed": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n"
        "</seed:tool_call>",
        [("weather", PARIS)],
    ),
    "MiniMax": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [("weather", PARIS), ("now", "{}")],
    ),
    "Granite": (
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]', [("weather", PARIS)]
    ),
    "bare JSON": (
        '{"name": "weather", "parameters": {}}', [text('{"name": "weather", "parameters": {}}')]
    ),
    "Hermes": ('<tool_call>{"name": "now", "arguments": {}}</tool_call>', [("now", "{}")]),
    "Mistral": ("[TOOL_CALLS]now[ARGS]{}", [("now", "{}")]),
}  # fmt: skip

SEED_OSS = {
    "thought, text and a call": (
        "<seed:think>Hm.\n</seed:think>\nLet me see.\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        "</seed:tool_call>",
        [
            thought("Hm.\n"), text("\nLet me see."),
            ("weather", '{"city": "Paris", "days": 2}'),
        ],
    ),
    "two calls": (
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
        "<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>",
        [("now", "{}"), ("weather", PARIS)],
    ),
    "thought about its budget": (
        "<seed:think>a<seed:cot_budget_reflect>b</seed:cot_budget_reflect></seed:think>c",
        [thought("a<seed:cot_budget_reflect>b</seed:cot_budget_reflect>"), text("c")],
    ),
}  # fmt: skip
COMMAND = {
    "thought and text": (
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>",
        [thought("Hm."), text("Hi.")],
    ),
    "a plan and two calls": (
        '<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        '"tool_name": "weather", "parameters": {"city": "Paris"}},\n    {"tool_call_id": "1", '
        '"tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        [thought("I look."), ("weather", PARIS), ("now", "{}")],
    ),
    "a call without a number or a list": (
        '<|START_ACTION|>{"tool_name": "weather", "parameters": {"city": "Paris"}}<|END_ACTION|>',
        [("weather", PARIS)],
    ),
    "no call": (
        '<|START_ACTION|>[{"tool_name": 3}]<|END_ACTION|>',
        [text('<|START_ACTION|>[{"tool_name": 3}]')],
    ),
}  # fmt: skip
ERNIE = {
    "thought and text": (
        "<think>\nHm.\n</think>\n\n<response>\nHi.\n</response>\n",
        [thought("\nHm.\n"), text("\n\n\nHi.\n\n")],
    ),
    "a call": (
        '<think>Hm.</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n'
        "</tool_call>\n",
        [thought("Hm."), ("weather", PARIS)],
    ),
}
CASES = [
    pytest.param(family, reply, expected, id=f"{family}: {name}")
    for family, table in {
        "hermes": HERMES,
        "qwen3_coder": QWEN3_CODER,
        "gemma4": GEMMA4,
        "harmony": HARMONY,
        "deepseek_r1": DEEPSEEK,
        "deepseek_v3": DEEPSEEK,
        "llama3": LLAMA3,
        "mistral": MISTRAL,
        "deepseek_v32": DSML,
        "seed_oss": SEED_OSS,
        "command": COMMAND,
        "ernie45": ERNIE,
        "hunyuan_a13b": HUNYUAN,
        "kimi_k2": KIMI,
        "lfm2": LFM2,
        "generic": GENERIC,
    }.items()
    for name, (reply, expected) in table.items()
]


@pytest.mark.parametrize(("family", "reply", "expected"), CASES)
def test_reply(family, reply, expected):
    parser = parser_for(None, family, family)
    assert parse(parser, reply) == expected
    assert parse(parser, list(reply)) == expected


@pytest.mark.parametrize("family", ["hermes", "deepseek_r1", "qwen3_coder", "generic"])
@pytest.mark.parametrize(
    ("prompt", "reply", "expected"),
    [
        ("", "<think>a</think>b", [thought("a"), text("b")]),
        ("", "\n<think>a</think>\n\nb", [thought("\na"), text("\n\nb")]),
        ("", "<think></think>b", [text("b")]),
        ("", "Use <think> and </think>.", [text("Use <think> and </think>.")]),
        ("", "<think>a</think>b<think>c", [thought("a"), text("b<think>c")]),
        ("", "<think>never closed </thin", [thought("never closed </thin")]),
        ("", "<thin", [text("<thin")]),
        (OPENED, "a</think>b", [thought("a"), text("b")]),
        (OPENED, "<think>\na</think>b", [thought("\na"), text("b")]),
        (OPENED, "a", [thought("a")]),
        (OPENED + "\n</think>\n\n", "b", [text("b")]),
    ],
)
@pytest.mark.parametrize("tools", [(), TOOLS])
def test_think_tags(family, prompt, reply, expected, tools):
    assert parse(parser_for(None, family, family), reply, prompt, tools) == expected


def test_prompts_that_end_in_thought():
    gemma = parser_for(None, "gemma4", "gemma4")
    assert parse(gemma, "Hm.\n<channel|>Hi", "<|turn>model\n<|channel>thought\n") == [
        thought("Hm."), text("Hi"),
    ]  # fmt: skip
    assert parse(gemma, "Hi", "<|turn>model\n<|channel>thought\n<channel|>") == [text("Hi")]
    harmony = parser_for(None, "harmony", "harmony")
    begun = "<|start|>assistant<|channel|>{}<|message|>So "
    assert parse(harmony, "far.<|return|>", begun.format("final")) == [text("far.")]
    assert parse(harmony, "far.<|end|>", begun.format("analysis")) == [thought("far.")]
    assert parse(harmony, "far.", "<|start|>user<|message|>Hi<|end|><|start|>assistant") == [
        text("far.")
    ]


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "llama3", "generic"])
def test_without_tools_calls_are_text(family):
    for reply in (HERMES["a call alone"][0], QWEN3_CODER["two calls"][0], LLAMA3["a call"][0]):
        assert parse(parser_for(None, family, family), reply, tools=()) == [text(reply)]


@pytest.mark.parametrize(
    ("family", "reply", "shown"),
    [
        ("mistral", "[TOOL_CALLS]now[ARGS]{}", "now{}"),
        ("gemma4", "<|tool_call>call:now{}<tool_call|>", "call:now{}"),
        ("llama3", "<|python_tag|>print(1)", "print(1)"),
        ("deepseek_v3", f"{B}{b}now{sep}{{}}{e}{E}", "now{}"),
        ("kimi_k2", OUTSIDE, "functions.now:0{}"),
        ("lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>", "[now()]"),
        ("harmony", "<|channel|>commentary to=functions.now<|message|>{}<|call|>", "{}"),
        ("mistral", "Hi[/THINK]", "Hi"),
        ("gemma4", "Hi<channel|>", "Hi"),
    ],
)
def test_control_tokens_are_no_text(family, reply, shown):
    """As if the tokenizer had left them out, where nothing was to be called."""
    assert parse(parser_for(None, family, family), reply, tools=()) == [text(shown)]


def test_arguments_stream():
    parser = parser_for(None, "hermes", "hermes")("", TOOLS)
    assert parser.feed('<tool_call>{"name": "weather", "argu') == []
    (begun,) = parser.feed('ments": {"ci')
    assert (begun.tool_name, begun.tool_index, begun.text) == ("weather", 0, '{"ci')
    assert [d.text for d in parser.feed('ty": "Par')] == ['ty": "Par']
    assert [d.text for d in parser.feed('is"}')] == ['is"}']
    assert parser.feed("}\n</tool_call>") == parser.finish() == []


@pytest.mark.parametrize(
    ("family", "pieces", "expected"),
    [
        (
            "qwen3_coder",
            ["<tool_call>\n<function=weather>\n<parameter=city>", "\nNew ", 'Y"o', "rk\n</para"],
            ['{"city": ', '"New ', 'Y\\"o', "rk"],
        ),
        (
            "gemma4",
            ['<|tool_call>call:weather{city:<|"|>', "New ", 'Y"o', "rk<|"],
            ['{"city": "', "New ", 'Y\\"o', "rk"],
        ),
    ],
)
def test_strings_stream_as_json(family, pieces, expected):
    parser = parser_for(None, family, family)("", TOOLS)
    assert ["".join(delta.text for delta in parser.feed(piece)) for piece in pieces] == expected


def test_text_is_not_held_back_without_need():
    parser = parser_for(None, "hermes", "hermes")("", TOOLS)
    shown = [
        "".join(delta.text for delta in parser.feed(piece))
        for piece in ("<thi", "nk>Let me", " see</t", "hink>Yes", " <", "b> {", " <tool_c", "x")
    ]
    assert shown == ["", "Let me", " see", "Yes", "", " <b> {", "", " <tool_cx"]


def test_all_arguments_of_whole_calls_are_json():
    for case in CASES:
        family, reply, expected = case.values
        for name, arguments in parse(parser_for(None, family, family), reply):
            broken = ("wrong", "cut off", "half")
            if name not in ("text", "reasoning") and not any(word in case.id for word in broken):
                assert isinstance(json.loads(arguments), dict)
