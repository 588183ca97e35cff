"""Llama 3.1 to 3.3: a bare `{"name": ..., "parameters": {...}}`, sometimes behind
`<|python_tag|>`, several divided by `;`."""

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers.calls import json_calls, known_json_call
from pagoda.text.parsers.tagged import Markup

MARKUP = Markup(
    calls={"<|python_tag|>": json_calls, "{": known_json_call},
    control=("<|python_tag|>",),
    call_form=CallForm('{"name": "', '", "parameters": ', "}", between="; "),
)
