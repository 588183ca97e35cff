"""DeepSeek V3.2 and V4: `<think>...</think>`, then text and calls with a tag for each parameter,
which says whether its value is a string or JSON."""

from pagoda.text.grammar.calls import CallForm, TaggedArguments
from pagoda.text.parsers.calls import closed_by
from pagoda.text.parsers.tagged import THINK, Markup
from pagoda.text.parsers.xml_calls import XmlForm, xml_calls

_TAG, _END = "<｜DSML｜", "</｜DSML｜"
OPEN, CLOSE = f"{_TAG}function_calls>", f"{_END}function_calls>"
# V4's, around the same calls.
OPEN_V4, CLOSE_V4 = f"{_TAG}tool_calls>", f"{_END}tool_calls>"
_FORM = XmlForm(
    name=(f'{_TAG}invoke name="', '">'),
    key=(f'{_TAG}parameter name="', '" string="'),
    value=("", f"{_END}parameter>"),
    ends=(f"{_END}invoke>",),
    kinds=('true">', 'false">'),
)

MARKUP = Markup(
    thought=THINK,
    calls={
        OPEN: closed_by((CLOSE,), xml_calls(_FORM)),
        OPEN_V4: closed_by((CLOSE_V4,), xml_calls(_FORM)),
    },
    call_form=CallForm(
        head=f'{_TAG}invoke name="',
        middle='">\n',
        tail=f"{_END}invoke>\n",
        before=f"{OPEN}\n",
        after=CLOSE,
        trigger=OPEN,
        arguments=TaggedArguments(
            (f'{_TAG}parameter name="', '" string="true">'),
            ("", f"{_END}parameter>", "\n"),
            open_json='" string="false">',
        ),
    ),
)
