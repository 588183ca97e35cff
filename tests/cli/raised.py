"""What errors say, read from where they are raised."""

import ast
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pagoda
from pagoda.base import errors

SOURCES = Path(pagoda.__file__).parent
# Requests' are the HTTP API's, which is English.
_OF_REQUESTS = ("RequestError", "ContextLengthError", "ModelNotFoundError", "QueueFullError")
_SHOWN = {
    *(name for name in vars(errors) if name.endswith("Error") and name not in _OF_REQUESTS),
    "ServerError", "BadLineError", "ArgumentTypeError",
}  # fmt: skip
# Their ValueErrors are quoted by errors about flags, files and variables.
_QUOTED = ("base", "config")
_MOST_FORMS = 16

Parts = tuple[str | None, ...]
"""Literal texts, and None for each value between them."""


def raised(folder: Path = SOURCES) -> dict[str, str]:
    """Forms of all messages, with {0}, {1}, ... for values, to where they stand."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(SOURCES)
        types = _SHOWN | ({"ValueError"} if name.parts[0] in _QUOTED else set())
        for line, form in _Module(ast.parse(path.read_text()), types).forms():
            found.setdefault(form, f"src/pagoda/{name}:{line}")
    return found


class _Module:
    def __init__(self, tree: ast.Module, types: set[str]):
        self._tree, self._types = tree, types
        self._constants = _assigned(tree.body)
        self._functions = {
            each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)
        }

    def forms(self) -> Iterator[tuple[int, str]]:
        yield from self._below(self._tree, self._constants)

    def _below(self, node: ast.AST, known: Mapping[str, list[ast.expr]]) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            inside = known
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = {**known, **_assigned(ast.walk(child))}
            if isinstance(child, ast.Call) and _name(child.func) in self._types and child.args:
                for form in self._of(child.args[0], inside):
                    yield child.lineno, form
            yield from self._below(child, inside)

    def _of(self, node: ast.expr, known: Mapping[str, list[ast.expr]]) -> Iterator[str]:
        for parts in self._parts(node, known, 0):
            if any(part is not None and any(map(str.isalpha, part)) for part in parts):
                yield _numbered(parts)

    def _parts(
        self, node: ast.expr, known: Mapping[str, list[ast.expr]], depth: int
    ) -> list[Parts]:
        """Each way in which the text may come out."""
        match node:
            case ast.Constant(value=str(text)):
                return [(text,)]
            case ast.IfExp():
                return [*self._parts(node.body, known, depth),
                        *self._parts(node.orelse, known, depth)]  # fmt: skip
            case ast.JoinedStr():
                return self._joined(node.values, known, depth)
            case ast.BinOp(op=ast.Add()) if _is_text(node.left) or _is_text(node.right):
                return self._joined([node.left, node.right], known, depth)
            case ast.FormattedValue(format_spec=None, conversion=-1):
                return self._parts(node.value, known, depth)
            case ast.Name() if depth < 3 and node.id in known:
                found = [each for value in known[node.id] if not _is_empty(value)
                         for each in self._parts(value, known, depth + 1)]  # fmt: skip
                return [(None,)] if (None,) in found else found
            case ast.Call(func=ast.Name()) if depth < 3 and node.func.id in self._functions:
                return self._returned(self._functions[node.func.id], depth)
        return [(None,)]

    def _joined(
        self, nodes: list[ast.expr], known: Mapping[str, list[ast.expr]], depth: int
    ) -> list[Parts]:
        ways = [self._parts(each, known, depth) for each in nodes]
        count = 1
        for each in ways:
            count *= len(each)
        if count > _MOST_FORMS:
            ways = [each if len(each) == 1 else [(None,)] for each in ways]
        return [tuple(part for parts in way for part in parts) for way in product(*ways)]

    def _returned(self, function: ast.FunctionDef, depth: int) -> list[Parts]:
        known = {**self._constants, **_assigned(ast.walk(function))}
        return [
            parts
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
            for parts in self._parts(node.value, known, depth + 1)
        ] or [(None,)]


def _assigned(nodes: object) -> dict[str, list[ast.expr]]:
    """Names to all that they may stand for."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.value is not None:
                found.setdefault(node.target.id, []).append(node.value)
    return found


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_empty(node: ast.expr) -> bool:
    """Of a text that is yet to be made."""
    return isinstance(node, ast.Constant) and node.value == ""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _numbered(parts: Parts) -> str:
    joined: list[str] = []
    count = 0
    for part in parts:
        if part is None:
            joined.append(f"{{{count}}}")
            count += 1
        else:
            joined.append(part.replace("{", "{{").replace("}", "}}"))
    return "".join(joined)
