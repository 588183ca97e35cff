"""Qwen3-Coder, Qwen 3.5 and Nemotron 3: as Hermes, with XML in the tag:
`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`."""

from dataclasses import replace

from pagoda.text.grammar.calls import CallForm, TaggedArguments
from pagoda.text.parsers import hermes
from pagoda.text.parsers.calls import closed_by
from pagoda.text.parsers.xml_calls import xml_calls

# The outer tag is sometimes forgotten.
UNWRAPPED = closed_by(("</tool_call>",), xml_calls(hermes.QWEN, opened=True))
CALL = CallForm(
    head="<tool_call>\n<function=",
    middle=">\n",
    tail="</function>\n</tool_call>",
    between="\n",
    trigger="<tool_call>",
    arguments=TaggedArguments(("<parameter=", ">\n"), ("\n", "</parameter>", "\n")),
)
MARKUP = replace(
    hermes.MARKUP,
    calls={**hermes.MARKUP.calls, hermes.QWEN.name[0]: UNWRAPPED},
    call_form=CALL,
)
