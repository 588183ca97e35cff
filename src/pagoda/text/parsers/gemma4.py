"""Gemma 4: `<|channel>thought\\n...<channel|>`, then text and
`<|tool_call>call:NAME{key:<|"|>text<|"|>,number:42}<tool_call|>`."""

import json
from typing import Any

from pagoda.text.grammar.calls import (
    CallForm,
    CallSpec,
    in_order,
    is_text,
    most_characters,
    properties_of,
    takes_nothing,
    text_choices,
)
from pagoda.text.grammar.rules import Rules, either, repeated
from pagoda.text.parsers.calls import Calls, closed_by
from pagoda.text.parsers.reader import LONGEST_WORD, Reader, Steps
from pagoda.text.parsers.tagged import Markup, Thought

QUOTE = '<|"|>'
_PUNCTUATION = "{}[]:,"


def gemma_call(reader: Reader, calls: Calls) -> Steps[None]:
    if not (yield from reader.literal("call:")):
        return
    name = ((yield from reader.word("{")) or "").strip()
    if not calls.may_call(name):
        return
    start = reader.at
    yield from reader.literal("{")
    if not (yield from _begins_well(reader)):
        return
    reader.at = start
    reader.take()
    yield calls.begin(name)
    yield from _arguments(reader, calls)


def _begins_well(reader: Reader) -> Steps[bool]:
    """Whether a key or the end of the arguments follows."""
    if (yield from reader.literal("}", QUOTE)):
        return True
    key = yield from reader.word(":", "<", "}")
    return bool(key) and (yield from reader.peek()) == ":"


def _arguments(reader: Reader, calls: Calls) -> Steps[None]:
    """Gemma's notation to JSON, token by token, to the bracket that closes the first."""
    depth = 0
    while mark := (yield from reader.peek()):
        if (yield from reader.literal(QUOTE)):
            yield from _string(reader, calls)
        elif mark in _PUNCTUATION:
            reader.at += 1
            reader.take()
            yield calls.give(mark + " " if mark in ":," else mark)
            depth += (mark in "{[") - (mark in "}]")
            if depth == 0:
                return
        elif mark.isspace():
            yield from reader.space()
            reader.take()
        else:
            yield from _bare(reader, calls)


def _string(reader: Reader, calls: Calls) -> Steps[None]:
    reader.take()
    yield calls.give('"')
    closed = yield from reader.until((QUOTE,), lambda text: calls.give(_quoted(text)[1:-1]))
    reader.take()
    if closed:
        yield calls.give('"')


def _bare(reader: Reader, calls: Calls) -> Steps[None]:
    """A key, a number, true, false or null; whatever else is not quoted becomes a string."""
    if (yield from reader.word(*_PUNCTUATION, QUOTE)) is None:
        reader.at = min(len(reader.text), LONGEST_WORD)
    word = reader.take().strip()
    follows = yield from reader.peek()
    if follows == ":":
        yield calls.give(word if _is_json(word) and word[0] == '"' else _quoted(word))
    else:
        yield calls.give(word if _is_json(word) or not follows else _quoted(word))


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def _written_arguments(rules: Rules, tool: CallSpec) -> str:
    given = properties_of(tool)
    if not given and not takes_nothing(tool):
        return _object(rules)
    parts = [
        (f"{rules.literal(name + ':')} {_written_value(rules, schema)}", required)
        for name, schema, required in given
    ]
    return f'"{{" {in_order(rules, parts, ",")} "}}"'


def _written_value(rules: Rules, schema: Any) -> str:
    """Strings, numbers and the like follow their schema; what objects and lists hold does not."""
    choices = text_choices(schema)
    if choices is not None:
        return either(*(rules.literal(f"{QUOTE}{choice}{QUOTE}") for choice in choices))
    if is_text(schema):
        return _text(rules, most_characters(schema))
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in ("number", "integer", "boolean", "null"):
        return rules.json({**schema}, {"lenient": True})
    if kind == "object":
        return _object(rules)
    return _list(rules) if kind == "array" else _any_value(rules)


def _text(rules: Rules, most: int | None = None) -> str:
    return rules.rule(f"{rules.literal(QUOTE)} {rules.until(QUOTE, most)}")


def _any_value(rules: Rules) -> str:
    plain = rules.json({"type": ["number", "boolean", "null"]})
    return rules.recursive("value", lambda value: either(
        _text(rules), plain, _object_of(rules, value), _list_of(rules, value)
    ))  # fmt: skip


def _object(rules: Rules) -> str:
    return _object_of(rules, _any_value(rules))


def _list(rules: Rules) -> str:
    return _list_of(rules, _any_value(rules))


def _object_of(rules: Rules, value: str) -> str:
    pair = rules.rule(rf'/[^:,{{}}\[\]<>\n]{{1,256}}/ ":" {value}')
    more = repeated(f'"," {pair}')
    return rules.rule(f'"{{" ({pair} {more})? "}}"')


def _list_of(rules: Rules, value: str) -> str:
    more = repeated(f'"," {value}')
    return rules.rule(f'"[" ({value} {more})? "]"')


MARKUP = Markup(
    thought=Thought("<|channel>", ("\n<channel|>", "<channel|>"), anywhere=True, label="thought\n"),
    calls={"<|tool_call>": closed_by(("<tool_call|>",), gemma_call)},
    control=("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", QUOTE),
    call_form=CallForm(
        "<|tool_call>call:",
        "",
        "<tool_call|>",
        trigger="<|tool_call>",
        arguments=_written_arguments,
    ),
)
