"""Which parser family a model needs: its chat template says, a flag overrides."""

from pagoda.base.errors import ConfigError
from pagoda.base.registry import Registry
from pagoda.text.parsers.base import ParserFamily

FAMILIES = Registry(
    "output parser",
    {
        "none": "pagoda.text.parsers.none:FAMILY",
        "think": "pagoda.text.parsers.think:FAMILY",
        # vLLM's names for the same markup
        "deepseek_r1": "pagoda.text.parsers.think:FAMILY",
        "qwen3": "pagoda.text.parsers.think:FAMILY",
    },
)


def parser_for(template_source: str | None, override: str | None = None) -> ParserFamily:
    """The family of a chat template, or the one named by `override` (ConfigError if unknown)."""
    if override is not None and override not in FAMILIES:
        raise ConfigError(f"There is no output parser {override!r}; {FAMILIES.nearest(override)}.")
    name = override or ("think" if "</think>" in (template_source or "") else "none")
    family: ParserFamily = FAMILIES.get(name)
    return family
