"""Workers whose templates have no budget: what keeps them is the process's bounds alone. With
`sees` as the model's name, of a text side that sees, which needs no files."""

import re

from pagoda.config.engine import ModelConfig
from pagoda.engine.aside import zygote
from pagoda.engine.served.text_side import TextSide
from pagoda.text.template import budget as template_budget

NEVER = re.compile("(?!)")
SEES = "sees"
ENDLESS = (
    "{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}"
    "{% if endless is defined %}{{ a(60) }}{% endif %}"
)
_load = zygote.load_text_side


def load_text_side(config: ModelConfig) -> TextSide:
    if config.model != SEES:
        return _load(config)
    from tests.server.fakes import FakeTextSide
    from tests.server.seeing import TEMPLATE, text_side

    return FakeTextSide(**text_side(ENDLESS + TEMPLATE))  # type: ignore[return-value]  # a fake


if __name__ == "__main__":
    for name in ("MAX_OUTPUT", "_MAX_STEPS", "_MAX_CHARACTERS", "_MAX_WIDTH", "_MAX_BITS"):
        setattr(template_budget, name, 1 << 62)
    template_budget._LONG_WIDTH = template_budget._LONG_FIELD = NEVER
    zygote.load_text_side = load_text_side
    zygote.main()
