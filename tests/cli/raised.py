"""What errors say, read from where they are raised."""

import ast
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from pathlib import Path

import pagoda
from pagoda.base import errors

SOURCES = Path(pagoda.__file__).parent
# Requests' are the HTTP API's, which is English.
_OF_REQUESTS = {"RequestError", "ContextLengthError", "ModelNotFoundError", "QueueFullError"}
_SHOWN = {
    *(name for name in vars(errors) if name.endswith("Error") and name not in _OF_REQUESTS),
    "ServerError", "BadLineError", "ArgumentTypeError", "CutShortError",
}  # fmt: skip
# Whose ValueErrors are quoted by errors about flags, files and variables.
_QUOTED = ("base", "config")
OF_SYSTEM = (
    "[Errno {0}] {1}",
    "[Errno {0}] {1}: {2}",
    *map(
        os.strerror,
        (
            errno.EACCES, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ECONNREFUSED, errno.EEXIST,
            errno.EHOSTUNREACH, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENAMETOOLONG,
            errno.ENOENT, errno.ENOMEM, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS,
            errno.ETIMEDOUT,
        ),
    ),
)  # fmt: skip
"""What is told of files and connections."""
_SAY_CAUSES = ("exit_cause",)
"""Functions whose texts become an error's in another process."""
_LOGS = ("_log", "log", "logger", "parser")
_MOST_FORMS, _MOST_STEPS = 16, 4

_WORDS = re.compile(r"\b[a-z`]+`?,? [a-z0]+\b")

Parts = tuple[str | None, ...]
"""Literal texts, and None for each value between them."""
Known = Mapping[str, Sequence[ast.expr]]
"""Names, and all that is assigned to each."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def raised(folder: Path = SOURCES, shown: Set[str] = _SHOWN) -> dict[str, str]:
    """Forms of all messages, with {0}, {1}, ... for values, to where they stand.

    Found are the texts that errors are made with, those that functions and names of the same
    module give to them, and what is passed to functions that put an argument into a message. What
    `say` makes is not: it is in the other catalogue. `shown` are the names of the errors.
    """
    modules = [_Module(path, folder, shown) for path in sorted(folder.rglob("*.py"))]
    functions: dict[str, list[tuple[_Module, Function]]] = {}
    for module in modules:
        for each in module.functions:
            functions.setdefault(each.name, []).append((module, each))
    search = _Search(functions)
    for module in modules:
        search.messages(module)
    for name in _SAY_CAUSES:
        for module, function in functions.get(name, ()):
            search.causes(module, function)
    for module in modules:
        search.arguments(module)
    return search.found | dict.fromkeys(OF_SYSTEM, "the system")


class _Module:
    def __init__(self, path: Path, folder: Path, shown: Set[str]):
        self.name = path.relative_to(folder)
        self.tree = ast.parse(path.read_text())
        self.constants = _assigned(self.tree.body)
        self.functions = [each for each in ast.walk(self.tree) if isinstance(each, Function)]
        self.types = shown | ({"ValueError"} if self.name.parts[0] in _QUOTED else set())

    def calls(self) -> Iterator[tuple[ast.Call, Known, Function | None]]:
        """With what names stand for there, and the function around it."""
        yield from self._calls(self.tree, self.constants, None)

    def _calls(
        self, node: ast.AST, known: Known, around: Function | None
    ) -> Iterator[tuple[ast.Call, Known, Function | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield from self._calls(child, self.known_in(child, known), child)
                continue
            if isinstance(child, ast.Call):
                yield child, known, around
            yield from self._calls(child, known, around)

    def known_in(self, function: Function, known: Known | None = None) -> Known:
        around = self.constants if known is None else known
        arguments = {each.arg: () for each in _arguments(function)}
        return {**around, **arguments, **_assigned(ast.walk(function))}


class _Search:
    def __init__(self, functions: Mapping[str, list[tuple[_Module, Function]]]):
        self.found: dict[str, str] = {}
        self._functions = functions
        self._passed: dict[str, set[int]] = {}
        """Functions that put an argument into a message, and its place."""

    def messages(self, module: _Module) -> None:
        for call, known, around in module.calls():
            if _name(call.func) in module.types and call.args:
                self._keep(module, call, known)
                if around is not None:
                    self._note_arguments(call.args[0], around)

    def arguments(self, module: _Module) -> None:
        """What such functions are given."""
        for call, known, _around in module.calls():
            if module.name.parts[0] == "bench" or (
                isinstance(call.func, ast.Attribute) and _name(call.func.value) in _LOGS
            ):
                continue
            for place in self._passed.get(_name(call.func), ()):
                if place < len(call.args):
                    parts = self._parts(call.args[place], module, known, 0)
                    self._keep_all(module, call.lineno, [each for each in parts if _prose(each)])

    def returned(self, module: _Module, function: Function) -> None:
        self._keep_all(module, function.lineno, self._returned(module, function, 0))

    def causes(self, module: _Module, function: Function) -> None:
        self.returned(module, function)
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                self._note_arguments(node.value, function)

    def _note_arguments(self, message: ast.expr, around: Function) -> None:
        names = [each.arg for each in _arguments(around) if each.arg not in ("self", "cls")]
        for node in ast.walk(message):
            if isinstance(node, ast.Name) and node.id in names:
                self._passed.setdefault(around.name, set()).add(names.index(node.id))

    def _keep(self, module: _Module, call: ast.Call, known: Known) -> None:
        texts = [call.args[0]]
        if isinstance(texts[0], ast.Name):
            texts = list(known.get(texts[0].id, texts))
        for text in texts:
            parts = self._parts(text, module, known, 0)
            if isinstance(text, ast.Call) and parts == [(None,)]:
                for other, function in self._functions.get(_name(text.func), ()):
                    self.returned(other, function)
            self._keep_all(module, call.lineno, parts)

    def _keep_all(self, module: _Module, line: int, texts: Iterable[Parts]) -> None:
        for parts in texts:
            own = "".join(part or "" for part in parts)
            if any(map(str.isalpha, own)) or ": " in own:
                self.found.setdefault(_numbered(parts), f"{module.name}:{line}")

    def _parts(self, node: ast.expr, module: _Module, known: Known, steps: int) -> list[Parts]:
        """Each way in which a text may come out."""
        match node:
            case ast.Constant(value=str(text)):
                return [(text,)]
            case ast.IfExp():
                return [*self._parts(node.body, module, known, steps),
                        *self._parts(node.orelse, module, known, steps)]  # fmt: skip
            case ast.JoinedStr():
                return self._joined(node.values, module, known, steps)
            case ast.BinOp(op=ast.Add()) if _is_text(node.left) or _is_text(node.right):
                return self._joined([node.left, node.right], module, known, steps)
            case ast.FormattedValue(format_spec=None, conversion=-1):
                return self._parts(node.value, module, known, steps)
            case ast.Name() if steps < _MOST_STEPS and known.get(node.id):
                found = [each for value in known[node.id] if not _is_empty(value)
                         for each in self._parts(value, module, known, steps + 1)]  # fmt: skip
                return [(None,)] if (None,) in found else found
            case ast.Call() if steps < _MOST_STEPS and _is_own(node.func):
                for function in module.functions:
                    if function.name == _name(node.func):
                        return self._returned(module, function, steps)
        return [(None,)]

    def _joined(
        self, nodes: list[ast.expr], module: _Module, known: Known, steps: int
    ) -> list[Parts]:
        ways = [self._parts(each, module, known, steps) for each in nodes]
        count = 1
        for each in ways:
            count *= len(each)
        if count > _MOST_FORMS:
            ways = [each if len(each) == 1 else [(None,)] for each in ways]
        return [tuple(part for parts in way for part in parts) for way in product(*ways)]

    def _returned(self, module: _Module, function: Function, steps: int) -> list[Parts]:
        known = module.known_in(function)
        return [
            parts
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
            for parts in self._parts(node.value, module, known, steps + 1)
        ] or [(None,)]


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                found.setdefault(name, []).append(value)
            case (ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value)
                  | ast.NamedExpr(target=ast.Name(name), value=value)):  # fmt: skip
                found.setdefault(name, []).append(value)
    return found


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args]


def _is_own(function: ast.expr) -> bool:
    """Of this module, or of the object itself."""
    return isinstance(function, ast.Name) or (
        isinstance(function, ast.Attribute) and _name(function.value) == "self"
    )


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_empty(node: ast.expr) -> bool:
    """Of a text that is yet to be made."""
    return isinstance(node, ast.Constant) and node.value == ""


def _prose(parts: Parts) -> bool:
    """Rather than a name."""
    return bool(_WORDS.search("0".join(part or "" for part in parts)))


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
