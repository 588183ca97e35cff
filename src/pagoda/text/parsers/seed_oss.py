"""Seed-OSS: `<seed:think>...</seed:think>`, then text and Qwen3-Coder's calls in a tag of their
own."""

from pagoda.text.grammar.calls import CallForm, TaggedArguments
from pagoda.text.parsers import hermes
from pagoda.text.parsers.calls import closed_by
from pagoda.text.parsers.tagged import Markup, Thought
from pagoda.text.parsers.xml_calls import xml_calls

OPEN, CLOSE = "<seed:tool_call>", "</seed:tool_call>"
MARKUP = Markup(
    Thought("<seed:think>", ("</seed:think>",)),
    {OPEN: closed_by((CLOSE,), xml_calls(hermes.QWEN))},
    call_form=CallForm(
        head=f"{OPEN}\n<function=",
        middle=">\n",
        tail=f"</function>\n{CLOSE}",
        between="\n",
        trigger=OPEN,
        arguments=TaggedArguments(("<parameter=", ">"), ("", "</parameter>", "\n")),
    ),
)
