"""DeepSeek R1 and its distilled models: they always think, and call as V3 does."""

from dataclasses import replace

from pagoda.text.grammar.calls import CallForm
from pagoda.text.parsers import deepseek_v3
from pagoda.text.parsers.deepseek_v3 import BEGIN, CALL_BEGIN, CALL_END, END, SEPARATOR

CALL = CallForm(
    head=f"{CALL_BEGIN}function{SEPARATOR}",
    middle="\n```json\n",
    tail=f"\n```{CALL_END}",
    between="\n",
    before=BEGIN,
    after=END,
    trigger=BEGIN,
)
MARKUP = replace(deepseek_v3.MARKUP, call_form=CALL)
