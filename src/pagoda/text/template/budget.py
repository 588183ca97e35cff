"""What a chat template may make of a few characters: sizes and steps, refused before they are made.

A rendering has a budget of its own (`spending`): each turn of a loop and each call of a macro costs
a step, each text or list that an operator or a filter puts together costs its length.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

MAX_OUTPUT = 32 * 1024 * 1024
"""Characters of any text that a template makes; the largest request body is well below."""
_MAX_STEPS = 1_000_000
# A template that compares all messages with each other takes that of a thousand.
_MAX_CHARACTERS = 128 * MAX_OUTPUT
_MAX_WIDTH = 10_000
"""Of an indentation, a padding, a number of digits."""
_MAX_BITS = 4096
"""Of a whole number."""

# Filters and methods that take a width; those of `replace`, `join` and formats are measured.
WIDE_FILTERS = ("batch", "center", "filesizeformat", "indent", "round", "slice", "tojson",
                "truncate", "wordwrap")  # fmt: skip
WIDE_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_LONG_WIDTH = re.compile(r"\d{5}|\*")
# `{:99999}`, and `{:{}}`, whose width is another argument.
_LONG_FIELD = re.compile(r"\{[^{}]*(\d{5}|\{)")


class _Budget:
    def __init__(self) -> None:
        self.steps = _MAX_STEPS
        self.characters = _MAX_CHARACTERS


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def spending() -> Iterator[None]:
    """What is rendered within has a budget of its own."""
    before = _BUDGET.set(_Budget())
    try:
        yield
    finally:
        _BUDGET.reset(before)


def spend_step() -> None:
    budget = _BUDGET.get()
    if budget is None:
        return
    budget.steps -= 1
    if budget.steps < 0:
        raise too_much(f"takes more than {_MAX_STEPS:,} steps")


def spend(length: int) -> None:
    """For a text or list of so many elements that is about to be made."""
    if length > MAX_OUTPUT:
        raise too_much(f"makes a text or list of {length} elements")
    budget = _BUDGET.get()
    if budget is None:
        return
    budget.characters -= length
    if budget.characters < 0:
        raise too_much(f"puts more than {_MAX_CHARACTERS} characters together")


def too_much(what: str) -> jinja2.TemplateRuntimeError:
    return jinja2.TemplateRuntimeError(f"the template {what}")


def check_operator(operator: str, left: Any, right: Any) -> None:
    match operator:
        case "%" if isinstance(left, str) and _LONG_WIDTH.search(left):
            raise too_much("has too large a width")
        case "**" if not _small(left, right):
            raise too_much("has too large a power")
        case "*":
            _check_product(left, right)
        case "+" if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            spend(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    for sized, times in ((left, right), (right, left)):
        if isinstance(sized, str | list | tuple) and isinstance(times, int):
            spend(len(sized) * max(0, times))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise too_much("has too large a number")


def _small(left: Any, right: Any) -> bool:
    return all(isinstance(value, int | float) and abs(value) < 1000 for value in (left, right))


def joined(parts: Sequence[Any]) -> str:
    """`a ~ b`."""
    texts = [str(part) for part in parts]
    spend(sum(map(len, texts)))
    return "".join(texts)


def check_method(text: str, name: str, arguments: Sequence[Any]) -> None:
    """Of a string, with what it is called with."""
    if name in WIDE_METHODS:
        _check_widths(arguments)
    elif name == "replace":
        _check_replacement(text, *arguments[:2])
    elif name == "join" and arguments:
        _check_join(text, arguments[0])


def check_format(text: str) -> None:
    """A string whose `format` is called."""
    if _LONG_FIELD.search(text.replace("{{", "")):
        raise too_much("has too large a width")


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """One of jinja2's filters, refused where it would make too much."""

    @wraps(function)  # and with it what jinja2 hands to the filter
    def checked(*arguments: Any, **named: Any) -> Any:
        # Some get jinja2's own first; what is filtered is the first of the others.
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0
        value, *rest = arguments[skipped:]
        if name in WIDE_FILTERS:
            _check_widths([*rest, *named.values()])
            if name == "indent":
                width = rest[0] if rest else named.get("width", 4)
                text = str(value)
                spend(len(text) + (text.count("\n") + 1) * _width_of(width))
        elif name == "replace":
            old, new = [*rest, *(named[key] for key in ("old", "new") if key in named)][:2]
            _check_replacement(str(value), str(old), str(new))
        elif name == "join":
            _check_join(str(rest[0]) if rest else str(named.get("d", "")), value)
        elif name == "format":
            check_operator("%", str(value), None)
        return function(*arguments, **named)

    return checked


BOUNDED_FILTERS = (*WIDE_FILTERS, "replace", "join", "format")


def _check_widths(arguments: Sequence[Any]) -> None:
    width = max(map(_width_of, arguments), default=0)
    if width > _MAX_WIDTH:
        raise too_much(f"has a width of {width}; {_MAX_WIDTH} are allowed")


def _width_of(argument: Any) -> int:
    """Of a number, or a text that stands for so many blanks."""
    if isinstance(argument, str):
        return len(argument)
    return argument if isinstance(argument, int) else 0


def _check_replacement(text: str, old: Any = "", new: Any = "") -> None:
    if isinstance(old, str) and isinstance(new, str):
        spend(len(text) + text.count(old) * len(new))


def _check_join(separator: str, items: Any) -> None:
    if isinstance(items, str | list | tuple):
        lengths = (len(item) for item in items if isinstance(item, str))
        spend(len(separator) * len(items) + sum(lengths))


class BudgetedCode(CodeGenerator):
    """Writes the steps and the joins of a template so that they are counted."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        node.body.insert(0, _step())
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        node.body.insert(0, _step())
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        node.body.insert(0, _step())
        super().visit_CallBlock(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # jinja2's name
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def _step() -> nodes.Node:
    count = nodes.EnvironmentAttribute("spend_step")
    return nodes.ExprStmt(nodes.Call(count, [], [], None, None))
