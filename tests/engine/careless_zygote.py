"""Workers whose templates have no budget: what keeps them is the process's bounds alone."""

import re

from pagoda.engine.aside import zygote
from pagoda.text import template_budget

NEVER = re.compile("(?!)")

if __name__ == "__main__":
    for name in ("MAX_OUTPUT", "_MAX_STEPS", "_MAX_CHARACTERS", "_MAX_WIDTH", "_MAX_BITS"):
        setattr(template_budget, name, 1 << 62)
    template_budget._LONG_WIDTH = template_budget._LONG_FIELD = NEVER
    zygote.main()
