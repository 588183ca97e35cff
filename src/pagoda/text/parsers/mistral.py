"""Mistral: `[THINK]...[/THINK]`, then text and `[TOOL_CALLS]NAME[ARGS]{...}`, or of old
`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`."""

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers.calls import Calls, arguments, json_calls
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tagged import Markup, Thought


def mistral_calls(reader: Reader, calls: Calls) -> Steps[None]:
    yield from reader.space()
    if (yield from reader.peek()) in ("[", "{"):
        yield from json_calls(reader, calls)
        return
    name = ((yield from reader.word("[", "{")) or "").strip()
    if (yield from reader.literal("[CALL_ID]")):
        call_id = yield from reader.word("[")
        if not (call_id or "").isalnum():
            return
    yield from reader.literal("[ARGS]")
    yield from arguments(reader, calls, name)


MARKUP = Markup(
    thought=Thought("[THINK]", ("[/THINK]",), anywhere=True),
    calls={"[TOOL_CALLS]": mistral_calls},
    control=("[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call_form=CallForm("[TOOL_CALLS]", "[ARGS]", "", trigger="[TOOL_CALLS]"),
)
