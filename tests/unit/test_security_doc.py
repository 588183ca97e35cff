"""docs/security.md names a test for each class of attack: they must be there."""

import ast
import re
from pathlib import Path

from tests.server.attacks import ATTACKS, ELSEWHERE

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
    rows = rows_of("| class | published | here |")
    assert len(rows) > 15
    for row in rows:
        assert NAMED.search(row), row


def test_every_class_and_limit_has_an_attack_during_which_others_are_served() -> None:
    tables = rows_of("| class | published | here |") + rows_of("| what | limit | then |")
    rows = {row.split("|")[1].strip() for row in tables}
    attacked = {row for attack in ATTACKS.values() for row in attack.rows}
    assert not attacked & ELSEWHERE.keys()
    assert attacked | ELSEWHERE.keys() == rows


def rows_of(head: str) -> list[str]:
    """Of the table with that head."""
    page = (ROOT / "docs" / "security.md").read_text()
    _, found, rest = page.partition(head + "\n|---|---|---|\n")
    assert found
    return rest.partition("\n\n")[0].splitlines()
