"""Dialects by name."""

from pagoda.base.registry import Registry

DIALECTS = Registry(
    "dialect",
    {
        "qwen": "pagoda_agent.dialects.qwen:Qwen",
        "nanokvm": "pagoda_agent.dialects.nanokvm:NanoKvm",
        "anthropic": "pagoda_agent.dialects.anthropic:Anthropic",
        "openai": "pagoda_agent.dialects.openai:OpenAI",
        "uitars": "pagoda_agent.dialects.uitars:UiTars",
    },
)
