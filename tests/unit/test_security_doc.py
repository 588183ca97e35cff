"""docs/security.md names a test for each class of attack: they must be there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) > 30
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        names = {node.name for node in tree.body if isinstance(node, kinds)}
        assert name in names, f"{path} has no {name}"


def test_every_class_has_a_test() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    _, _, table = page.partition("| class | published | here |\n|---|---|---|\n")
    rows = table.splitlines()
    assert len(rows) > 15
    for row in rows:
        assert NAMED.search(row), row
