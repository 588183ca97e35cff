"""Values of JSON and GGUF metadata that no program writes, put where any value stands."""

import copy
from typing import Any

from hypothesis import strategies as st

HUGE = 10**400
VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, 2**64, HUGE, -HUGE, 1e-320, 1e300, float("inf"),
    float("nan"), "", "x", "#####", "\ud800", "²", "9" * 5000, "{{", [], [[]], [HUGE], ["\ud800"],
    [None, 1], {}, {"content": 1}, {"\udfff": 1}, {"type": "default"}, {"rope_type": 5},
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one or two of its values gone or replaced."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        if isinstance(holder, dict) and draw(st.integers(0, 9)) == 0:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return tree


def _places(tree: Any):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    # Of a long list, a vocabulary, a few stand for all.
    for key, value in list(items)[:60]:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


_SCALARS = [0, 1, -1, 2**31, 2**63, 2**64 - 1, True, 1e-320, 1e300, float("inf"), float("nan"), "",
            "x", "\u00b2", "{{"]  # fmt: skip
_ARRAYS = [[], [0] * 3, [-1], [True], [float("nan")] * 9, ["", ""], ["x"], [2**64 - 1]]


@st.composite
def mutated_metadata(draw: st.DrawFn, metadata: dict[str, Any]) -> dict[str, Any]:
    """As `mutated`, with what a GGUF can hold: scalars, and lists of one type."""
    metadata = copy.deepcopy(metadata)
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from(sorted(metadata)))
        match draw(st.integers(0, 3)):
            case 0:
                del metadata[key]
            case 1:
                metadata[key] = draw(st.sampled_from(_SCALARS))
            case 2:
                metadata[key] = list(draw(st.sampled_from(_ARRAYS)))
            case _ if isinstance(metadata[key], list) and metadata[key]:
                kind = type(metadata[key][0])
                values = [value for value in _SCALARS if type(value) is kind]
                place = draw(st.integers(0, len(metadata[key]) - 1))
                metadata[key][place] = draw(st.sampled_from(values))
    return metadata
