"""LFM2 and LFM2.5: `<think>...</think>` where a version thinks, then text and
`<|tool_call_start|>[NAME(key="text", number=42), ...]<|tool_call_end|>`: calls as in Python, or, to
who asks for it, as JSON."""

import json
import re
from typing import Any

from pagoda.text.grammar.calls import (
    CallForm,
    CallSpec,
    in_order,
    properties_of,
    takes_nothing,
    text_choices,
    with_definitions,
)
from pagoda.text.grammar.rules import Rules, either, repeated
from pagoda.text.parsers.calls import Calls, closed_by, json_calls, pass_if
from pagoda.text.parsers.reader import LONGEST_WORD, Reader, Steps
from pagoda.text.parsers.tagged import THINK, Markup

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_NAME = re.compile(r"[\w.:/-]+")
_OPENING, _CLOSING = "([{", ")]}"
_PUNCTUATION = "()[]{},:='\""
_QUOTES = ('"""', "'''", '"', "'")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "",
            "\\": "\\", "'": "'", '"': '"'}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def lfm2_calls(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.space()
    start = reader.at
    listed = yield from reader.literal("[")
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        reader.at = start
        yield from json_calls(reader, calls)
        return
    more = True
    while more:
        if not (yield from _call(reader, calls)):
            return
        more = yield from pass_if(reader, ",")
    if listed:
        yield from pass_if(reader, "]")


def _call(reader: Reader, calls: Calls) -> Steps[bool]:
    yield from reader.space()
    name = ((yield from reader.word("(")) or "").strip()
    if not _NAME.fullmatch(name) or not calls.may_call(name):
        return False
    yield from reader.literal("(")
    start = reader.at
    if not (yield from _begins_well(reader)):
        return False
    reader.at = start
    reader.take()
    yield calls.begin(name)
    yield calls.give("{")
    yield from _arguments(reader, calls)
    return True


def _begins_well(reader: Reader) -> Steps[bool]:
    """Whether a key or the end of the arguments follows."""
    yield from reader.space()
    if (yield from reader.literal(")")):
        return True
    key = yield from reader.word("=", *_OPENING, *_CLOSING, ",", *_QUOTES)
    return bool(key) and (yield from reader.peek()) == "="


def _arguments(reader: Reader, calls: Calls) -> Steps[None]:
    """Python's notation to JSON, token by token, to the bracket that closes the call."""
    closing = ["}"]
    while mark := (yield from reader.peek()):
        if quote := (yield from reader.literal(*_QUOTES)):
            yield from _string(reader, calls, quote)
        elif mark.isspace():
            yield from reader.space()
            reader.take()
        elif mark not in _PUNCTUATION:
            yield from _bare(reader, calls)
        else:
            reader.at += 1
            reader.take()
            if mark in _OPENING:
                closing.append("}" if mark == "{" else "]")
                yield calls.give("{" if mark == "{" else "[")
            elif mark in _CLOSING:
                yield calls.give(closing.pop())
                if not closing:
                    return
            elif mark in ":=":
                yield calls.give(": ")
            elif not (yield from _closes(reader)):
                yield calls.give(", ")


def _closes(reader: Reader) -> Steps[bool]:
    """Whether a bracket closes behind a comma, which JSON does not know."""
    yield from reader.space()
    reader.take()
    return (yield from reader.peek()) in tuple(_CLOSING)


def _string(reader: Reader, calls: Calls, quote: str) -> Steps[None]:
    reader.take()
    yield calls.give('"')
    while end := (
        yield from reader.until((quote, "\\"), lambda text: calls.give(_quoted(text)[1:-1]))
    ):
        reader.take()
        if end == "\\":
            text = yield from _escaped(reader)
        elif (yield from _ends(reader)):
            yield calls.give('"')
            return
        else:
            text = quote
        reader.take()
        # As ASCII: half of a surrogate pair has no other form.
        yield calls.give(json.dumps(text)[1:-1])


def _ends(reader: Reader) -> Steps[bool]:
    """Whether a quote ended its string. LFM2.5's template escapes none, and so its models may not:
    one that nothing follows which follows a value is a character."""
    yield from reader.space()
    ended = (yield from reader.peek()) in ("", ",", ":", *_CLOSING)
    if not ended:
        reader.at = 0
    return ended


def _escaped(reader: Reader) -> Steps[str]:
    """What stands behind a backslash, which Python keeps where it means nothing."""
    mark = yield from reader.peek()
    reader.at += len(mark)
    if mark not in _HEX_DIGITS:
        return _ESCAPES.get(mark, "\\" + mark)
    start = reader.at
    for _ in range(_HEX_DIGITS[mark]):
        if (yield from reader.peek()) not in tuple("0123456789abcdefABCDEF"):
            break
        reader.at += 1
    digits = reader.text[start : reader.at]
    code = int(digits, 16) if len(digits) == _HEX_DIGITS[mark] else 0x110000
    return chr(code) if code < 0x110000 else f"\\{mark}{digits}"


def _bare(reader: Reader, calls: Calls) -> Steps[None]:
    """A key, a number, True, False or None; whatever else is not quoted becomes a string."""
    if (yield from reader.word(*_PUNCTUATION)) is None:
        reader.at = min(len(reader.text), LONGEST_WORD)
    word = reader.take().strip()
    word = _WORDS.get(word, word)
    follows = yield from reader.peek()
    is_key = follows in tuple(":=")
    yield calls.give(word if not is_key and (_is_json(word) or not follows) else _quoted(word))


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def _in_python(arguments: str) -> str:
    """JSON of an object as the arguments of a call; what is none stays as it is."""
    try:
        given = json.loads(arguments)
        if isinstance(given, dict):
            return ", ".join(f"{key}={_literal(value)}" for key, value in given.items())
    except (ValueError, RecursionError):
        pass
    return arguments


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        pairs = (f"{_quoted(key)}: {_literal(held)}" for key, held in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _written_arguments(rules: Rules, tool: CallSpec) -> str:
    """`key=value` for each, values as in Python but for what lists and objects hold, which may be
    JSON's: both are read."""
    given = properties_of(tool)
    if not given and not takes_nothing(tool):
        pair = rules.rule(rf'/[A-Za-z_][0-9A-Za-z_]{{0,255}}/ "=" {rules.json({})}')
        more = repeated(f'", " {pair}')
        return f"({pair} {more})?"
    parts = [
        (f"{rules.literal(name + '=')} {_written_value(rules, tool, schema)}", required)
        for name, schema, required in given
    ]
    return in_order(rules, parts, ", ")


def _written_value(rules: Rules, tool: CallSpec, schema: Any) -> str:
    choices = text_choices(schema)
    if choices is not None:
        return either(*(rules.literal(_quoted(choice)) for choice in choices))
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "boolean" and "enum" not in schema and "const" not in schema:
        return either('"True"', '"False"')
    return rules.json(with_definitions(schema, tool), tool.options)


MARKUP = Markup(
    thought=THINK,
    calls={OPEN: closed_by((CLOSE,), lfm2_calls)},
    control=(OPEN, CLOSE),
    call_form=CallForm(
        head="",
        middle="(",
        tail=")",
        between=", ",
        before=OPEN + "[",
        after="]" + CLOSE,
        trigger=OPEN,
        arguments=_written_arguments,
        of_json=_in_python,
    ),
)
