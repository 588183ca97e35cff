"""Which parser family a model needs: its chat template says, flags override."""

import re
from collections.abc import Callable

from pagoda.base.errors import ConfigError
from pagoda.base.registry import Registry
from pagoda.text.parsers.base import ParserFamily
from pagoda.text.parsers.harmony import Harmony
from pagoda.text.parsers.tagged import Markup
from pagoda.text.template.spelled import shows_tools

AnyMarkup = Markup | Harmony
_HERE = "pagoda.text.parsers"
_NAMES = (
    "gemma4", "hermes", "qwen3_coder", "harmony", "deepseek_r1", "deepseek_v3", "deepseek_v32",
    "llama3", "mistral", "seed_oss", "command", "ernie45", "hunyuan_a13b", "kimi_k2", "lfm2",
    "generic",
)  # fmt: skip
# vLLM's names for the same markup
_ALIASES = {
    "cohere_command3": "command",
    "cohere_command4": "command",
    "deepseek_v31": "deepseek_v3",
    "deepseek_v4": "deepseek_v32",
    "glm45": "generic",
    "glm47": "generic",
    "gpt_oss": "harmony",
    "granite": "generic",
    "granite4": "hermes",
    "llama3_json": "llama3",
    "llama4_json": "llama3",
    "minimax_m2": "generic",
    "nemotron_v3": "qwen3_coder",
    "openai": "harmony",
    "openai_gptoss": "harmony",
    "qwen3": "hermes",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
FAMILIES = Registry(
    "output parser",
    {name: f"{_HERE}.{_ALIASES.get(name, name)}:MARKUP" for name in (*_NAMES, *_ALIASES)}
    | {"none": f"{_HERE}.tagged:PLAIN"},
)

# Llama 3 and 4 write the same calls.
_LLAMA = re.compile(r"<\|(start_header_id|header_start)\|>")
_JSON_ARGUMENTS = re.compile(r'arguments\\?"')


def _hermes(text: str) -> bool:
    return "<tool_call>" in text and _JSON_ARGUMENTS.search(text) is not None


# The first that holds for a template's text decides: its tags are the model's.
_SIGNS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("harmony", lambda text: "<|channel|>" in text and "<|message|>" in text),
    ("gemma4", lambda text: "<|channel>" in text or "<|tool_call>" in text),
    ("mistral", lambda text: "[TOOL_CALLS]" in text or "[THINK]" in text),
    ("deepseek_v32", lambda text: "｜DSML｜" in text),
    ("deepseek_r1", lambda text: "<｜tool▁sep｜>" in text and "```json" in text),
    ("deepseek_v3", lambda text: "<｜tool▁sep｜>" in text),
    ("qwen3_coder", lambda text: "<tool_call>" in text and "<parameter=" in text),
    ("seed_oss", lambda text: "<seed:tool_call>" in text),
    ("command", lambda text: "<|START_ACTION|>" in text),
    ("kimi_k2", lambda text: "<|tool_call_argument_begin|>" in text),
    ("lfm2", lambda text: "<|tool_list_start|>" in text or '"List of tools: ["' in text),
    ("hunyuan_a13b", lambda text: "<answer>" in text and "</answer>" in text),
    ("generic", lambda text: "<tool_calls>" in text),
    ("ernie45", lambda text: "<response>" in text and _hermes(text)),
    ("hermes", _hermes),
    ("llama3", lambda text: bool(_LLAMA.search(text)) and '{"name": function name' in text),
    ("generic", lambda text: "</think>" in text or "tools" in text),
)


def detect(template_source: str | None) -> str:
    """The name of the family that a chat template was written for; `none` without markup."""
    text = template_source or ""
    return next((name for name, holds in _SIGNS if holds(text)), "none")


def parser_for(
    template_source: str | None, reasoning: str = "auto", tool_calls: str = "auto"
) -> ParserFamily:
    """The family of a chat template; the flags' values override either half of it.

    A model whose template shows no tools is told how to call them, and calls as `hermes` does.
    Raises ConfigError for a name that is not known, and for halves that do not fit together.
    """
    detected = detect(template_source)
    thinking = _known(detected if reasoning == "auto" else reasoning, "--reasoning-parser")
    calling = _known(
        _calling(detected, template_source) if tool_calls == "auto" else tool_calls,
        "--tool-call-parser",
    )
    name = thinking if thinking == calling else f"{thinking}+{calling}"
    return _joined(FAMILIES.get(thinking), FAMILIES.get(calling), name).family(name)


def _calling(detected: str, template_source: str | None) -> str:
    is_told = template_source is not None and detected in ("none", "generic")
    return "hermes" if is_told and not shows_tools(template_source or "") else detected


def _known(name: str, flag: str) -> str:
    if name not in FAMILIES:
        raise ConfigError(f"There is no output parser {name!r} ({flag}); {FAMILIES.nearest(name)}.")
    return _ALIASES.get(name, name)


def _joined(thinking: AnyMarkup, calling: AnyMarkup, name: str) -> AnyMarkup:
    """Thought as one family marks it, calls as another."""
    if isinstance(thinking, Markup) and isinstance(calling, Markup):
        if thinking is calling:
            return thinking
        control = dict.fromkeys((*thinking.control, *calling.control))
        return Markup(thinking.thought, calling.calls, tuple(control), calling.call_form)
    parts = (thinking, calling)
    if any(isinstance(part, Markup) and part.tokens() for part in parts):
        raise ConfigError(
            f"--reasoning-parser and --tool-call-parser can't be joined as {name}: harmony marks "
            "thought and calls in one; give both flags the same name, `none` or `auto`."
        )
    return Harmony(*(isinstance(part, Harmony) for part in parts))
