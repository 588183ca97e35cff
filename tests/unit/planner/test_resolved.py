"""What a resolved config may hold, and who may still ask for "auto"."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import pagoda
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig
from pagoda.planner.resolve import device_name, resolve
from pagoda.planner.resolved import ResolvedConfig
from tests.unit.planner.test_resolve import GIB, smollm2

# None is what was chosen here, not what is left to choose.
OPTIONS = {"kv_disk"}
# Between what was asked for and the engine: the floors that run what the planner resolved.
RESOLVED_FLOORS = ("kernels", "quant", "layers", "models", "runtime", "engine")
# Where a model's own sampling defaults come from, by name; `text/` chooses them by its template.
# What RAY_ADDRESS says; and whether ranks ask Ray for GPUs, before any of them has its own.
SOURCES = {
    ("engine/served/text_side.py", "source"),
    ("engine/ranks/ray_ranks.py", "given"),
    ("engine/ranks/ray_ranks.py", "device"),
}


def leaves(kind: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each value's field and type."""
    if not dataclasses.is_dataclass(kind):
        yield name, kind
        return
    for field, hint in get_type_hints(kind).items():
        yield from leaves(hint, field)


def choices() -> dict[str, tuple[str, ...]]:
    """Of what can be asked for, by field."""
    asked = EngineConfig()
    return {
        field.name: field.metadata["choices"] or ()
        for section in dataclasses.fields(asked)
        for field in dataclasses.fields(getattr(asked, section.name))
    }


def is_final(name: str, kind: Any) -> bool:
    """Whether the type leaves nothing to choose; words are known ones."""
    if kind is str:
        return "auto" not in (known := choices().get(name, ())) and bool(known)
    if get_origin(kind) is Literal:
        return "auto" not in get_args(kind)
    if get_origin(kind) is tuple:
        return all(is_final(name, one) for one in get_args(kind) if one is not Ellipsis)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return all(is_final(*field) for field in get_type_hints(kind).items())
    return kind in (int, float, bool) or (name in OPTIONS and type(None) in get_args(kind))


def test_every_field_has_its_final_type():
    found = dict(leaves(ResolvedConfig))
    assert {"dtype", "threads", "max_model_len", "image_max_tokens", "device"} <= found.keys()
    assert not {name: kind for name, kind in found.items() if not is_final(name, kind)}
    assert not is_final("dtype", str) and not is_final("threads", int | None)
    assert not is_final("nodes", tuple[int | None, ...])
    assert not is_final("max_num_seqs", int | str)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_value_is_of_its_type(device):
    made = resolve(EngineConfig(), smollm2(), {}, DeviceFacts(device, 64 * GIB, 60 * GIB, 4))

    def check(value: Any) -> None:
        for name, hint in get_type_hints(type(value)).items():
            part = getattr(value, name)
            if dataclasses.is_dataclass(hint):
                check(part)
            elif get_origin(hint) is Literal:
                assert part in get_args(hint), name
            elif get_origin(hint) is tuple:
                assert all(isinstance(one, get_args(hint)[0]) for one in part), name
            else:
                assert isinstance(part, hint), name

    check(made.config)


def asks_for_auto(tree: ast.AST) -> Iterator[str]:
    """What is compared with the word, or matched against it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [word for side in sides for word in ast.walk(side)]
            if any(isinstance(word, ast.Constant) and word.value == "auto" for word in words):
                yield ast.unparse(node.left)
        elif isinstance(node, ast.MatchValue) and ast.unparse(node.value) == "'auto'":
            yield "match"


def test_nothing_behind_the_planner_asks_for_auto():
    root = Path(pagoda.__file__).parent
    found = {
        (str(path.relative_to(root)), words)
        for floor in RESOLVED_FLOORS
        for path in (root / floor).rglob("*.py")
        for words in asks_for_auto(ast.parse(path.read_text()))
    }
    assert found == SOURCES
    planner = ast.parse((root / "planner" / "resolve.py").read_text())
    assert "match" in set(asks_for_auto(planner))


def test_a_device_is_looked_for_only_where_none_is_named():
    def look() -> bool:
        raise AssertionError("it was named")

    assert [device_name(name, look) for name in ("cpu", "cuda")] == ["cpu", "cuda"]
    assert device_name("auto", lambda: True) == "cuda"
    assert device_name("auto", lambda: False) == "cpu"
    with pytest.raises(ConfigError, match="choose auto, cpu or cuda"):
        device_name("tpu", look)
