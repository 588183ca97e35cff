"""docs/structure.md names files, folders and definitions: they exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/structure.md").read_text()
_SPAN = re.compile(r"`([a-z_0-9/]+(?:/|\.py|\.cpp))(?:::(\w+))?`")
# A folder alone may be meant as part of the one that its row begins with.
NAMED = sorted({(path, name) for path, name in _SPAN.findall(PAGE) if "/" in path[:-1]})
_LIFE = PAGE.partition("## The life of a request")[2].partition("\n## ")[0]
STEPS = re.findall(r"^\| (\d+) \| `([^`]+)` \|", _LIFE, re.MULTILINE)


def place(path: str) -> Path:
    return (
        ROOT / path
        if path.startswith(("agent/", "docs/", "tests/", "tools/"))
        else ROOT / "src/pagoda" / path
    )


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_the_page_names_exists(path: str, name: str) -> None:
    found = place(path)
    assert found.exists(), path
    if name:
        defined = [
            node.name
            for node in ast.parse(found.read_text()).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        assert name in defined


def test_a_request_takes_few_steps() -> None:
    assert [number for number, _ in STEPS] == [str(number + 1) for number in range(len(STEPS))]
    assert 20 <= len(STEPS) <= 25
