"""Hermes, Qwen 2.5 and 3, and many others: `<think>...</think>`, then text and
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from pagoda.text.grammar.calls import JSON_IN_TAG
from pagoda.text.parsers.calls import Calls, closed_by, json_calls
from pagoda.text.parsers.reader import Reader, Steps
from pagoda.text.parsers.tagged import THINK, Markup
from pagoda.text.parsers.xml_calls import XmlForm, xml_calls

QWEN = XmlForm(
    name=("<function=", ">"),
    key=("<parameter=", ">"),
    value=("", "</parameter>"),
    ends=("</function>", "</tool_call>"),
)
GLM = XmlForm(
    name=("", ""),
    key=("<arg_key>", "</arg_key>"),
    value=("<arg_value>", "</arg_value>"),
    ends=("</tool_call>",),
)
_READERS = {"{": json_calls, "[": json_calls, "<": xml_calls(QWEN)}


def tool_call(reader: Reader, calls: Calls) -> Steps[None]:
    """What stands in the tag: models of one family mix up the forms."""
    yield from reader.space()
    yield from _READERS.get((yield from reader.peek()), xml_calls(GLM))(reader, calls)


TOOL_CALL = closed_by(("</tool_call>",), tool_call)
MARKUP = Markup(THINK, {"<tool_call>": TOOL_CALL}, call_form=JSON_IN_TAG)
