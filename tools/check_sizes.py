"""Size budgets: files and functions that no longer fit in a head fail `make check`."""

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "agent/src")
FILE_CAP, FILE_MEDIAN, FUNCTION_CAP, CPP_CAP = 500, 150, 80, 900


def main() -> int:
    sizes = {path: _lines(path) for top in SOURCES for path in sorted((ROOT / top).rglob("*.py"))}
    problems = list(_too_long(sizes, FILE_CAP))
    for folder in ("bench", "tests", "fuzz"):
        aside = {path: _lines(path) for path in sorted((ROOT / folder).rglob("*.py"))}
        problems += _too_long(aside, FILE_CAP)
    ours = [path for top in SOURCES for path in (ROOT / top).rglob("*")]
    page = [p for p in ours if p.suffix in (".js", ".css", ".html")]
    problems += _too_long({p: _lines(p) for p in sorted(page)}, FILE_CAP)
    cpp = [
        p
        for top in ("src", "fuzz")
        for p in (ROOT / top).rglob("*")
        if p.suffix in (".cpp", ".h", ".hpp")
    ]
    problems += _too_long({p: _lines(p) for p in sorted(cpp)}, CPP_CAP)
    for path in sizes:
        problems += _long_functions(path)
    median = statistics.median(size for size in sizes.values() if size)
    if median > FILE_MEDIAN:
        problems.append(f"the median file has {median:.0f} lines; the budget is {FILE_MEDIAN}")
    for problem in problems:
        print(problem)
    print(f"{len(sizes)} files, median {median:.0f} lines, {len(problems)} over budget")
    return 1 if problems else 0


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _too_long(sizes: dict[Path, int], cap: int) -> Iterator[str]:
    for path, size in sizes.items():
        if size > cap:
            yield f"{path.relative_to(ROOT)}: {size} lines; the cap is {cap}"


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_CAP:
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield f"{place}: {node.name} has {size} lines; the cap is {FUNCTION_CAP}"


if __name__ == "__main__":
    sys.exit(main())
