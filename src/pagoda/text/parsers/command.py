"""Command R7B, A and later: `<|START_THINKING|>...<|END_THINKING|>`, then text between
`<|START_RESPONSE|>` and `<|END_RESPONSE|>`, or calls:
`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`."""

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers.calls import Calls, arguments, closed_by, pass_if
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tagged import Markup, Thought

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


def command_calls(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.space()
    yield from reader.literal("[")
    while (yield from _call(reader, calls)):
        yield from pass_if(reader, "}")
        if not (yield from pass_if(reader, ",")):
            yield from pass_if(reader, "]")
            return


def _call(reader: Reader, calls: Calls) -> Steps[bool]:
    yield from reader.space()
    if not (yield from reader.literal("{")):
        return False
    call_id = yield from _field(reader, '"tool_call_id"')
    if call_id and not call_id.isascii():
        return False
    name = yield from _field(reader, '"tool_name"')
    if not name or not (yield from _key(reader, '"parameters"')):
        return False
    return (yield from arguments(reader, calls, name))


def _field(reader: Reader, key: str) -> Steps[str | None]:
    """The value of the key, a string without escapes, passed with the comma behind; None, and
    nothing is passed, where another key stands."""
    start = reader.at
    if not (yield from _key(reader, key)) or not (yield from reader.literal('"')):
        reader.at = start
        return None
    value = yield from reader.word('"', "\\")
    if not (yield from reader.literal('"')):
        return None
    yield from reader.space()
    return value if (yield from reader.literal(",")) else None


def _key(reader: Reader, key: str) -> Steps[bool]:
    """Pass the key with its colon."""
    yield from reader.space()
    if not (yield from reader.literal(key)):
        return False
    yield from reader.space()
    found = yield from reader.literal(":")
    yield from reader.space()
    return bool(found)


MARKUP = Markup(
    Thought("<|START_THINKING|>", ("<|END_THINKING|>",), anywhere=True),
    {OPEN: closed_by((CLOSE,), command_calls)},
    control=(
        "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
        "<|END_TEXT|>", OPEN, CLOSE,
    ),
    call_form=CallForm(
        head='{"tool_name": "',
        middle='", "parameters": ',
        tail="}",
        between=",\n    ",
        before=OPEN + "[\n    ",
        after="\n]" + CLOSE,
        trigger=OPEN,
    ),
)  # fmt: skip
