"""The jinja2 environment of chat templates: what transformers offers them, inside a sandbox.

Templates come with model files from anywhere, so they get plain data, no attributes beginning with
an underscore, and limits on what a few characters of template could otherwise blow up.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT = 32 * 1024 * 1024
"""Characters a template may render; the largest request body is well below."""
_MAX_RANGE = 100_000
"""Steps that all `range` calls of one rendering may take together."""


_LONG_WIDTH = re.compile(r"\d{4}|\*")


class _GenerationTag(Extension):
    """`{% generation %}` marks what training learns from; serving renders it as if not there."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str) and _LONG_WIDTH.search(left):
            raise jinja2.TemplateRuntimeError("a width in the template is too large")
        if operator == "**" and not _small(left, right):
            raise jinja2.TemplateRuntimeError("a power in the template is too large")
        if operator == "*" and _length(left, right) > MAX_OUTPUT:
            raise jinja2.TemplateRuntimeError("a repetition in the template is too long")
        return super().call_binop(context, operator, left, right)


def _small(left: Any, right: Any) -> bool:
    return all(isinstance(value, int | float) and abs(value) < 1000 for value in (left, right))


def _length(left: Any, right: Any) -> int:
    for sized, times in ((left, right), (right, left)):
        if isinstance(sized, str | list | tuple) and isinstance(times, int):
            return len(sized) * times
    return 0


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where jinja2's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What `map` and its like make, which are lists in the llama.cpp project's engine."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _bounded_range() -> Callable[..., range]:
    left = _MAX_RANGE

    def bounded(*args: int) -> range:
        nonlocal left
        steps = range(*args)
        left -= len(steps)
        if left < 0:
            raise jinja2.TemplateRuntimeError(
                f"the template loops over ranges of more than {_MAX_RANGE} steps"
            )
        return steps

    return bounded


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template; raises jinja2.TemplateSyntaxError."""
    return ENVIRONMENT.from_string(source)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render, with the limits above; raises jinja2.TemplateError and whatever expressions raise."""
    # As a variable, `range` counts for this rendering alone.
    pieces = template.generate({"range": _bounded_range(), **variables})
    return "".join(_limited(pieces))


def _limited(pieces: Iterable[str]) -> Iterable[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_OUTPUT:
            raise jinja2.TemplateRuntimeError(
                f"the rendered prompt is longer than {MAX_OUTPUT} characters"
            )
        yield piece
