"""A model as Codex wants to know it: one missing field, and it reads none of the list."""

from typing import Any

import msgspec

# Codex begins each conversation with them in place of its own for models that it knows.
_INSTRUCTIONS = """\
You are a coding agent that works in a user's folder through the tools you are given.

- Look before you change anything: read the files that matter, and search with `rg`.
- Make the smallest change that does what was asked, in the style of the code around it.
- Change files with apply_patch where you have it, otherwise with shell commands.
- Run the project's tests or the program afterwards, and mend what your change broke.
- Call a tool instead of telling what you would do. Go on until the task is done.
- Never undo changes that are not yours, and never commit unless you were asked to.
- At the end say in a few sentences what you changed and how you know that it works."""


class TruncationPolicy(msgspec.Struct):
    mode: str = "tokens"
    limit: int = 10_000
    """What a tool printed is cut to."""


class CodexModel(msgspec.Struct, kw_only=True):
    slug: str
    display_name: str
    description: str | None = None
    default_reasoning_level: str | None = None
    supported_reasoning_levels: list[Any] = msgspec.field(default_factory=list)
    """None to choose from: the chat template decides."""
    shell_type: str = "unified_exec"
    visibility: str = "list"
    supported_in_api: bool = True
    priority: int = 1
    availability_nux: None = None
    upgrade: None = None
    base_instructions: str = _INSTRUCTIONS
    supports_reasoning_summaries: bool = False
    support_verbosity: bool = False
    default_verbosity: None = None
    apply_patch_tool_type: str = "freeform"
    truncation_policy: TruncationPolicy = msgspec.field(default_factory=TruncationPolicy)
    supports_parallel_tool_calls: bool = True
    context_window: int | None
    """Tokens; None while the model is not loaded."""
    experimental_supported_tools: list[str] = msgspec.field(default_factory=list)
    input_modalities: list[str]
