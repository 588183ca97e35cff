"""What grammars of replies accept: texts as each family's models write them, and wrong ones."""

import json

import pytest

from pagoda.text.grammar.calls import MOST_CALLS, CallSpec
from pagoda.text.grammar.reply import CallRule, reply_grammar
from pagoda.text.parsers.select import FAMILIES
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

WEATHER = CallSpec(
    "weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer"},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
)
NOW = CallSpec("now", {"type": "object", "properties": {}, "additionalProperties": False})
PARIS = '{"city": "Paris", "days": 2}'
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
    "generic": f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
    "qwen3_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
    ),
    "gemma4": '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
    "harmony": ("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + PARIS),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        f"{PARIS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_r1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "lfm2": '<|tool_call_start|>[weather(city="Paris", days=2)]<|tool_call_end|>',
    "llama3": f'{{"name": "weather", "parameters": {PARIS}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{PARIS}",
    "seed_oss": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>"
    ),
    "command": (
        f'<|START_ACTION|>[\n    {{"tool_name": "weather", "parameters": {PARIS}}}\n]<|END_ACTION|>'
    ),
    "ernie45": f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
}
THOUGHTS = {
    "hermes": "<think>Which city? {x}</think>",
    "qwen3_coder": "<think>\nWhich city?\n</think>",
    "deepseek_r1": "<think>Which city?</think>",
    "gemma4": "<|channel>thought\nWhich city?<channel|>",
    "harmony": "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant",
    "mistral": "[THINK]Which city?[/THINK]",
    "seed_oss": "<seed:think>Which city?</seed:think>",
    "command": "<|START_THINKING|>Which city?<|END_THINKING|>",
}
AUTO = (
    "hermes", "qwen3_coder", "gemma4", "deepseek_v3", "deepseek_r1", "mistral", "seed_oss",
    "command", "ernie45", "kimi_k2", "lfm2", "deepseek_v32",
)  # fmt: skip
PROMPT = "<|start|>assistant"


class Family:
    def __init__(self, name: str, special: bool):
        self.family = FAMILIES.get(name).family(name)
        tokens = [tag for tag in self.family.markup_tokens if tag != "{"]  # text everywhere
        self.bytes = ByteGrammars(tuple(tokens) if special else ())

    def grammar(self, prompt: str = PROMPT, **options) -> str:
        grammar = reply_grammar(self.family.form, prompt, self.bytes.special_ids, **options)
        assert grammar is not None
        return grammar

    def accepts(self, text: str, **options) -> bool:
        return self.bytes.accepts(self.grammar(**options), text)

    def calls(self, text: str) -> list[tuple[str, object]]:
        """What the family's parser finds in the text."""
        tools = [
            {"type": "function", "function": {"name": t.name, "parameters": t.parameters}}
            for t in (WEATHER, NOW)
        ]
        parser = self.family("<|start|>assistant", tools)
        found: list[list[str]] = []
        for delta in [*parser.feed(text), *parser.finish()]:
            if delta.kind == "tool_call":
                if delta.tool_name is not None:
                    found.append([delta.tool_name, ""])
                found[-1][1] += delta.text
        return [(name, json.loads(arguments)) for name, arguments in found]


@pytest.fixture(params=[False, True], ids=["as text", "as tokens"])
def special(request) -> bool:
    """Markup of one family is plain text in some tokenizers, and special tokens in others."""
    return request.param


REQUIRED = CallRule([WEATHER, NOW], required=True)


@pytest.mark.parametrize("name", CALLS)
def test_required_calls_are_what_the_familys_models_write(name, special):
    family, call = Family(name, special), CALLS[name]
    assert family.accepts(call, calls=REQUIRED)
    assert family.calls(call) == [("weather", {"city": "Paris", "days": 2})]
    assert not family.accepts("The weather is fine.", calls=REQUIRED)
    assert not family.accepts(call.replace("weather", "wether"), calls=REQUIRED)
    assert not family.accepts(call.replace("2", "two"), calls=REQUIRED)
    assert not family.accepts(call.replace("city", "town"), calls=REQUIRED)
    assert not family.accepts(call[:-1], calls=REQUIRED)


@pytest.mark.parametrize("name", THOUGHTS)
def test_thought_comes_before_what_is_asked_for(name, special):
    family, thought = Family(name, special), THOUGHTS[name]
    assert family.accepts(thought + CALLS[name], calls=REQUIRED)
    answer = {"body": lambda rules: rules.json({"type": "integer"}), "spaced": True}
    final = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert family.accepts(f"{thought}{final}17", **answer)
    assert family.accepts(f"{final}17", **answer)
    assert not family.accepts(f"{thought}{final}seventeen", **answer)
    assert not family.accepts(thought, **answer)


def test_a_thought_that_the_prompt_opened_must_end():
    family = Family("deepseek_r1", special=False)
    options = {"prompt": "Question\n<think>\n", "body": lambda rules: rules.literal("yes")}
    assert family.accepts("Hm, 1 < 2.</think>yes", **options)
    assert not family.accepts("yes", **options)
    assert not family.accepts("Hm.</think>no", **options)


@pytest.mark.parametrize("name", AUTO)
def test_calls_in_text_follow_their_schemas(name, special):
    family, call = Family(name, special), CALLS[name]
    free = CallRule([WEATHER, NOW], required=False)
    for text in ("", "Fine weather, 1 < 2.", call, f"Let me look.\n{call}"):
        assert family.accepts(text, calls=free), text
    for text in (call.replace("2", "two"), f"Ah: {call.replace('weather', 'wether')}"):
        assert not family.accepts(text, calls=free), text


@pytest.mark.parametrize("name", [name for name in CALLS if name not in AUTO])
def test_where_nothing_opens_calls_text_is_free(name):
    form = FAMILIES.get(name).family(name).form
    assert reply_grammar(form, PROMPT, {}, calls=CallRule([WEATHER], required=False)) is None


def test_several_calls_only_where_they_are_wanted():
    family = Family("hermes", special=False)
    twice = f"{CALLS['hermes']}\n{CALLS['hermes']}"
    assert family.accepts(twice, calls=REQUIRED)
    assert not family.accepts(twice, calls=CallRule([WEATHER], required=True, several=False))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls_that_are_required_come_to_an_end(name):
    """Or a small model writes one again and again, until the context is full."""
    family = Family(name, special=False)
    form = family.family.form.calls
    call = CALLS[name].removeprefix(form.before).removesuffix(form.after)
    for count in (MOST_CALLS, MOST_CALLS + 1):
        many = form.before + form.between.join([call] * count) + form.after
        fits = count <= (1 if form.single else MOST_CALLS)
        assert family.accepts(many, calls=REQUIRED) == fits


def test_calls_or_an_answer():
    family = Family("hermes", special=False)
    options = {
        "calls": CallRule([WEATHER], required=False),
        "body": lambda rules: rules.json({"type": "boolean"}),
    }
    assert family.accepts("true", **options)
    assert family.accepts(CALLS["hermes"], **options)
    assert not family.accepts("maybe", **options)


def test_parameters_may_be_left_out_but_not_the_required_ones():
    family = Family("gemma4", special=False)

    def call(arguments: str) -> str:
        return f"<|tool_call>call:weather{{{arguments}}}<tool_call|>"

    city, unit = 'city:<|"|>A, {B}<|"|>', 'unit:<|"|>C<|"|>'
    for arguments in (city, f"{city},{unit}", f"{city},days:-3", f"{city},{unit},days:1"):
        assert family.accepts(call(arguments), calls=REQUIRED), arguments
    for arguments in ("", unit, f"{city},unit:C", f"{city},", f"{unit},{city}", f"{city}{unit}"):
        assert not family.accepts(call(arguments), calls=REQUIRED), arguments


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_parameters_has_none(name, special):
    family = Family(name, special)
    empty = {
        "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "gemma4": "<|tool_call>call:now{}<tool_call|>",
        "deepseek_v32": (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
            "</｜DSML｜function_calls>"
        ),
        "lfm2": "<|tool_call_start|>[now()]<|tool_call_end|>",
        "seed_oss": "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
    }.get(name, CALLS[name].replace("weather", "now").replace(PARIS, "{}"))
    filled = CALLS[name].replace("weather", "now")
    rule = CallRule([NOW], required=True)
    assert family.accepts(empty, calls=rule)
    assert not family.accepts(filled, calls=rule)


def test_blanks_before_an_answer_are_few():
    family = Family("none", special=False)
    options = {"body": lambda rules: rules.json({"type": "object"}), "spaced": True}
    assert family.accepts('\n\n{\n  "a": 1\n}', **options)
    assert not family.accepts(" " * 33 + "{}", **options)
    assert not family.accepts('{"a":' + " " * 33 + "1}", **options)


def test_without_anything_to_enforce_there_is_no_grammar():
    for name in ("none", "hermes"):
        assert reply_grammar(FAMILIES.get(name).family(name).form, PROMPT, {}) is None


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4"])
def test_the_length_of_unquoted_strings_is_bounded(name, special):
    family = Family(name, special)
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}},
              "required": ["city"]}  # fmt: skip
    rule = CallRule([CallSpec("weather", schema)], required=True)
    call = {
        "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\n{}\n</parameter>\n"
        "</function>\n</tool_call>",
        "gemma4": '<|tool_call>call:weather{{city:<|"|>{}<|"|>}}<tool_call|>',
    }[name]
    assert family.accepts(call.format("Paris"), calls=rule)
    assert not family.accepts(call.format("London"), calls=rule)
