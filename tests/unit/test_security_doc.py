"""docs/security.md says only what a test holds: each claim names its tests, and they are there."""

import ast
import functools
import re
from pathlib import Path

from tests.server.attacks import ATTACKS, ELSEWHERE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)?::(\w+)`")
CLAIMING = ("Closed by default", "Limits", "Published vulnerabilities of others, by class")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def claims() -> list[str]:
    """List items, rows of tables, and paragraphs that are neither."""
    found = []
    for title in CLAIMING:
        for block in re.split(r"\n(?=- )|\n{2,}", sections()[title].strip()):
            lines = block.splitlines()
            found += lines[2:] if lines[0].startswith("|") else [block]
    return found


def named_by(claim: str) -> list[tuple[str, str]]:
    named, file = [], ""
    for path, name in NAMED.findall(claim):
        file = path or file
        named.append((file, name))
    return named


@functools.cache
def defined_in(path: str) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, kinds)}


def test_each_claim_names_a_test() -> None:
    # What introduces a section is no claim.
    introductions = ("Below each claim", "The entries are about vLLM")
    without = [
        claim for claim in claims() if not named_by(claim) and not claim.startswith(introductions)
    ]
    assert not without
    assert len(claims()) > 50


def test_every_test_that_the_page_names_exists() -> None:
    named = [place for claim in claims() for place in named_by(claim)]
    assert len(named) > 100
    missing = [(path, name) for path, name in named if name not in defined_in(path)]
    assert not missing
    assert len(named) == len(NAMED.findall(PAGE)), "named outside of a claim"


def test_other_sections_claim_nothing() -> None:
    assert set(sections()) - set(CLAIMING) == {"Who is trusted", "Recipes"}


def test_every_class_and_limit_has_an_attack_during_which_others_are_served() -> None:
    rows = {claim.split("|")[1].strip() for claim in claims() if claim.startswith("|")}
    attacked = {row for attack in ATTACKS.values() for row in attack.rows}
    assert not attacked & ELSEWHERE.keys()
    assert attacked | ELSEWHERE.keys() == rows
