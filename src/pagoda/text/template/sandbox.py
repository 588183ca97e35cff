"""The jinja2 environment of chat templates: what transformers offers them, inside a sandbox.

Templates come with model files from anywhere, so they get plain data, no attributes beginning with
an underscore, and limits on what a few characters of template could otherwise blow up.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagoda.text.template.budget import (
    BOUNDED_FILTERS,
    MAX_OUTPUT,
    BudgetedCode,
    bounded,
    check_format,
    check_method,
    check_operator,
    joined,
    spend_step,
    spending,
)

_MAX_RANGE = 100_000
"""Steps that all `range` calls of one rendering may take together."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what training learns from; serving renders it as if not there."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**", "%", "+"))
    code_generator_class = BudgetedCode
    joined = staticmethod(joined)
    spend_step = staticmethod(spend_step)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            check_method(owner, function.__name__, args)
        return super().call(context, function, *args, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is not None:
            check_format(value.__self__)
        return formatted


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def dates() -> dict[str, str]:
    """Today, for templates that have no `strftime_now` or came before it: Llama 3.1 says a day of
    2024 where nobody gives `date_string`, and FireFunction cannot do without `datetime`."""
    return {"date_string": _strftime_now("%d %b %Y"), "datetime": _strftime_now("%b %d %Y")}


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
    for name in BOUNDED_FILTERS:
        environment.filters[name] = bounded(name, environment.filters[name])
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _environment()


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template; raises jinja2.TemplateSyntaxError."""
    try:
        return ENVIRONMENT.from_string(source)
    except (SyntaxError, ValueError) as error:
        # Of the Python that jinja2 makes of it: a `break` outside of a loop, say.
        raise jinja2.TemplateSyntaxError(f"it makes no program: {error}", 1) from error


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render, with the limits above; raises jinja2.TemplateError and whatever expressions raise."""
    # As a variable, `range` counts for this rendering alone.
    pieces = template.generate({"range": _bounded_range(), **variables})
    with spending():
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
