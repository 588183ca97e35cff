"""Dialects by name."""

from pagoda.base.registry import Registry

DIALECTS = Registry(
    "dialect",
    {
        "qwen": "pagoda.agent.dialects.qwen:Qwen",
        "nanokvm": "pagoda.agent.dialects.nanokvm:NanoKvm",
        "anthropic": "pagoda.agent.dialects.anthropic:Anthropic",
        "openai": "pagoda.agent.dialects.openai:OpenAI",
        "uitars": "pagoda.agent.dialects.uitars:UiTars",
    },
)
