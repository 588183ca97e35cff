"""What is known of each family of models: how it speaks, counts positions and likes its pictures.

Numbers in positions mean different things to different models and cannot be told apart by looking
at them, so a wrong profile clicks beside everything: `calibrate` measures whether it fits.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.base.near import nearest
from pagoda_agent.dialects.anthropic import Version
from pagoda_agent.dialects.registry import dialect_named
from pagoda_agent.dialects.space import PATCH, Space, resized
from pagoda_agent.models.dialogue import Dialect
from pagoda_agent.screen.frame import Frame

# As many tokens of a picture as Pagoda takes on a CPU (--image-max-tokens); others take more.
_SENT_AREA = 1024 * PATCH * PATCH

Api = Literal["openai", "responses", "anthropic", "dashscope"]


@dataclass(frozen=True)
class Profile:
    name: str
    dialect: str
    """A name in dialects/registry.py."""
    api: Api = "openai"
    """The API that such models are usually served with (models/registry.py)."""
    space: Space = Space.THOUSAND
    """What positions count; Anthropic's and OpenAI's dialects know pixels only."""
    as_tools: bool = False
    """Through the API's tool calls instead of text, where the dialect knows both."""
    version: Version = "20251124"
    """Version of Anthropic's computer tool."""
    preview: bool = False
    """OpenAI's computer-use-preview instead of its `computer` tool."""
    long_edge: int = 1280
    """Pixels; larger screenshots are made smaller before they are sent."""
    picture_format: Literal["JPEG", "PNG"] = "JPEG"
    pictures: int = 3
    """Screenshots kept in each request."""
    prune_every: int = 3
    """So many old pictures go at once; in between a server's prefix cache fits. 1: exactly
    `pictures` in each request."""
    pixels_per_notch: int = 100
    """What a notch of the wheel is in scrolls that a model writes in pixels."""

    def picture_size(self, frame: Frame) -> tuple[int, int]:
        """(width, height) in which a screenshot is sent. Where positions count pixels of what the
        model's own resizing makes of it, that is a size which it leaves as it is, so that no limit
        of a server's moves them."""
        size = frame.scaled_size(self.long_edge)
        return resized(size, _SENT_AREA) if self.space is Space.RESIZED else size


_QWEN3 = Profile("qwen3-vl", "qwen")
PROFILES = {
    profile.name: profile
    for profile in (
        _QWEN3,
        replace(_QWEN3, name="qwen3-vl-tools", as_tools=True),
        # Its mobile prompts and some of its fine-tunes count to 999.
        replace(_QWEN3, name="qwen3-vl-999", space=Space.NINES),
        replace(_QWEN3, name="qwen2.5-vl", space=Space.RESIZED),
        Profile("nanokvm", "nanokvm"),
        Profile("nanokvm-unit", "nanokvm", space=Space.UNIT),
        Profile("ui-tars-1.0", "uitars", pictures=5),
        Profile("ui-tars-1.5", "uitars", space=Space.RESIZED, pictures=5),
        # Beyond these edges Anthropic's servers make pictures smaller themselves.
        Profile("claude-20241022", "anthropic", "anthropic", Space.PIXELS, version="20241022"),
        Profile("claude-20250124", "anthropic", "anthropic", Space.PIXELS, version="20250124"),
        Profile("claude-20251124", "anthropic", "anthropic", Space.PIXELS, version="20251124"),
        Profile("claude-20260801", "anthropic", "anthropic", Space.PIXELS, version="20260801"),
        Profile("openai-computer", "openai", "responses", Space.PIXELS, picture_format="PNG"),
        Profile(
            "computer-use-preview",
            "openai",
            "responses",
            Space.PIXELS,
            preview=True,
            picture_format="PNG",
        ),
    )
}
DEFAULT = "nanokvm"
"""For models that are not known: plain text that any model can write."""

# The first that is found in the model's name, in lower case, wins.
_NAMES = (
    (r"qwen2[._-]?5-?vl|opencua|gta1", "qwen2.5-vl"),
    (r"qwen-?[3-9]|qwen-?vl|holo[12]", "qwen3-vl"),
    (r"ui-?tars.*1[._-]5|seed-?1[._-]5", "ui-tars-1.5"),
    (r"ui-?tars", "ui-tars-1.0"),
    (r"claude-3-5-sonnet", "claude-20241022"),
    (r"claude-(3-7|sonnet-4(-2|-5|$)|opus-4(-2|-1|$)|haiku-4)", "claude-20250124"),
    (r"claude", "claude-20251124"),
    (r"computer-use-preview", "computer-use-preview"),
    (r"\bgpt-[5-9]|\bo[3-9]\b", "openai-computer"),
)


def profile_for(model: str, name: str | None = None, **changes: Any) -> Profile:
    """The profile for a model's name (a path or `owner/name` too), or the one called `name`;
    `changes` are fields to set otherwise. Raises ConfigError for a profile that is not known."""
    if name is None:
        plain = model.lower()
        name = next((known for sign, known in _NAMES if re.search(sign, plain)), DEFAULT)
    if name not in PROFILES:
        close = nearest(name, PROFILES)
        hint = f"did you mean {close!r}? Known" if close else "known"
        raise ConfigError(f"There is no model profile {name!r}; {hint}: {', '.join(PROFILES)}.")
    return replace(PROFILES[name], **changes)


def dialect_of(profile: Profile) -> Dialect:
    """The profile's dialect with its settings."""
    settings: dict[str, Any] = {
        "qwen": {
            "space": profile.space,
            "as_tools": profile.as_tools,
            "pixels_per_notch": profile.pixels_per_notch,
        },
        "nanokvm": {"space": profile.space},
        "uitars": {"space": profile.space},
        "anthropic": {"version": profile.version},
        "openai": {"preview": profile.preview, "pixels_per_notch": profile.pixels_per_notch},
    }
    dialect: Dialect = dialect_named(profile.dialect)(**settings[profile.dialect])
    return dialect
