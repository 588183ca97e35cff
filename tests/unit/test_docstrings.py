"""Docstrings are read on hover, apart from what stands around them."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "agent" / "src").rglob("*.py")]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def test_each_stands_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()}"
        for path in sorted(SOURCES)
        for line, text in docstrings(path)
        if text.startswith("Of ") or len(text.split()) < 2
    ]
    assert not found, "\n".join(found)
