"""What the dialects' tests share: replies, and hypothesis strategies for actions."""

import json
from typing import Any

from hypothesis import strategies as st

from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import Point
from pagoda_agent.input.keys import KEYS
from pagoda_agent.models.dialogue import Reply, ToolCall

SCREEN = (1280, 720)
FULL = Capabilities(horizontal_wheel=True, unicode=True)

ANY_TEXT = st.text(min_size=1, max_size=60)
PLAIN_KEYS = sorted(code for code, key in KEYS.items() if not key.modifier)
MODIFIERS = sorted(code for code, key in KEYS.items() if key.modifier)
CHORDS = st.builds(
    lambda held, keys: (*held, *keys),
    st.lists(st.sampled_from(MODIFIERS), max_size=3, unique=True),
    st.lists(st.sampled_from(PLAIN_KEYS), min_size=1, max_size=3, unique=True),
)
HELD = st.lists(st.sampled_from(MODIFIERS), max_size=2, unique=True).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=8,
)


def whole_pixels(screen: tuple[int, int] = SCREEN) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, screen[0] - 1), st.integers(0, screen[1] - 1))


def pixel_of(point: Point, screen: tuple[int, int] = SCREEN) -> tuple[int, int]:
    """The pixel that a share lies in."""
    return (int(point.x * screen[0]), int(point.y * screen[1]))


def calls(*inputs: tuple[str, Any], text: str = "") -> Reply:
    """A reply of tool calls, each (name, arguments as an object or as raw text)."""
    made = tuple(
        ToolCall(f"call-{number}", name, given if isinstance(given, str) else json.dumps(given))
        for number, (name, given) in enumerate(inputs)
    )
    return Reply(text, made, finish_reason="tool_calls")
