"""Kimi K2: `<think>...</think>` where a version thinks, then text and calls between markers, each
`functions.NAME:INDEX`, a marker and JSON."""

import re

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers.calls import Calls, arguments, pass_if
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tagged import THINK, Markup

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_SCOPE = "functions."
_INDEX = re.compile(r":\d+$")


def kimi_calls(reader: Reader, calls: Calls) -> Steps[None]:
    before = calls.count
    while True:
        yield from reader.space()
        if not (yield from reader.literal(CALL_BEGIN)):
            break
        call_id = yield from reader.word(ARGUMENTS)
        if call_id is None or not (yield from reader.literal(ARGUMENTS)):
            return
        name = _INDEX.sub("", call_id.strip()).removeprefix(_SCOPE)
        if not (yield from arguments(reader, calls, name)):
            return
        yield from pass_if(reader, CALL_END)
    if calls.count > before:
        reader.at = 0
        yield from pass_if(reader, END)


MARKUP = Markup(
    thought=THINK,
    calls={BEGIN: kimi_calls},
    control=(BEGIN, END, CALL_BEGIN, CALL_END, ARGUMENTS),
    call_form=CallForm(
        head=CALL_BEGIN + _SCOPE,
        middle=ARGUMENTS,
        tail=CALL_END,
        before=BEGIN,
        after=END,
        numbered=True,
        trigger=BEGIN,
    ),
)
