"""DeepSeek V3 and V3.1: `<think>...</think>`, then text and calls between markers, either
`function<｜tool▁sep｜>NAME` and fenced JSON, or `NAME<｜tool▁sep｜>{...}`."""

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers.calls import Calls, arguments, pass_if
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tagged import THINK, Markup

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


def deepseek_calls(reader: Reader, calls: Calls) -> Steps[None]:
    before = calls.count
    while True:
        yield from reader.space()
        if not (yield from reader.literal(CALL_BEGIN)):
            break
        name = yield from reader.word(SEPARATOR)
        if not (yield from reader.literal(SEPARATOR)):
            return
        yield from reader.space()
        if name == "function" and (yield from reader.peek()) != "{":
            name = yield from reader.word("\n", "{")
            yield from reader.space()
            yield from reader.literal("```json")
        if not (yield from arguments(reader, calls, (name or "").strip())):
            return
        yield from pass_if(reader, "```")
        yield from pass_if(reader, CALL_END)
    if calls.count > before:
        reader.at = 0
        yield from pass_if(reader, END)


MARKUP = Markup(
    thought=THINK,
    calls={BEGIN: deepseek_calls},
    control=(BEGIN, END, CALL_BEGIN, CALL_END, SEPARATOR),
    call_form=CallForm(
        head=CALL_BEGIN, middle=SEPARATOR, tail=CALL_END, before=BEGIN, after=END, trigger=BEGIN
    ),
)
