"""Families without a parser of their own: think tags, and the forms of calls that mean nothing
else. What a plain reply could contain, such as bare JSON, is text here."""

from dataclasses import replace

from pagoda.text.grammar.calls import JSON_IN_TAG
from pagoda.text.parsers import deepseek_v3, gemma4, hermes, mistral, qwen3_coder
from pagoda.text.parsers.calls import closed_by, json_calls
from pagoda.text.parsers.tagged import THINK, Markup
from pagoda.text.parsers.xml_calls import XmlForm, xml_calls

MINIMAX = XmlForm(
    name=('<invoke name="', '">'),
    key=('<parameter name="', '">'),
    value=("", "</parameter>"),
    ends=("</invoke>",),
)

MARKUP = Markup(
    THINK,
    {
        **qwen3_coder.MARKUP.calls,
        **mistral.MARKUP.calls,
        **deepseek_v3.MARKUP.calls,
        **gemma4.MARKUP.calls,
        "<tool_calls>": closed_by(("</tool_calls>",), json_calls),  # Apriel
        "<TOOLCALL>": closed_by(("</TOOLCALL>",), json_calls),  # Nemotron Nano 2
        "<|tool_call|>": json_calls,  # Granite 3
        "<seed:tool_call>": closed_by(("</seed:tool_call>",), xml_calls(hermes.QWEN)),
        "<minimax:tool_call>": closed_by(("</minimax:tool_call>",), xml_calls(MINIMAX)),
    },
    # Which of the forms the model was taught is not known: this one is made, none is expected.
    call_form=replace(JSON_IN_TAG, trigger=""),
)
