"""Dialects by name; a module loads when its dialect is asked for."""

from pkgutil import resolve_name
from typing import Any

DIALECTS = {
    "qwen": "pagoda_agent.dialects.qwen:Qwen",
    "nanokvm": "pagoda_agent.dialects.nanokvm:NanoKvm",
    "anthropic": "pagoda_agent.dialects.anthropic:Anthropic",
    "openai": "pagoda_agent.dialects.openai:OpenAI",
    "uitars": "pagoda_agent.dialects.uitars:UiTars",
}


def dialect_named(name: str) -> Any:
    """The dialect's class. KeyError for one that is not known."""
    return resolve_name(DIALECTS[name])
