"""What a request asks of its output's structure, as one grammar for the engine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.served.text_side import TextSide
from pagoda.text.grammar.body import (
    ANY_OBJECT,
    check,
    choice_body,
    grammar_body,
    json_body,
    regex_body,
)
from pagoda.text.grammar.calls import LENIENT, CallSpec
from pagoda.text.grammar.reply import Body, CallRule, ThoughtLimit, reply_grammar
from pagoda.text.grammar.rules import Rules
from pagoda.text.grammar.schema import checked_schema, parsed_schema, unenforceable
from pagoda.text.grammar.structural import structural_body

_JSON_KINDS = ("json", "json_object")


@dataclass(frozen=True)
class ToolUse:
    """The tools that a reply may call."""

    tools: Sequence[Mapping[str, Any]] = ()
    """In OpenAI's form."""
    required: bool = False
    several: bool = True


@dataclass(frozen=True)
class Constraint:
    """A grammar for the engine (None: nothing to enforce), and what it leaves out."""

    grammar: str | None = None
    unenforced: list[str] = field(default_factory=list)
    """What is not held to, each with its reason: parts of tools' schemas that the model is only
    told of, a budget of thought."""


def completion_constraint(wanted: StructuredOutputsParams | None) -> Constraint:
    """For text that is all answer. Raises RequestError for what cannot be enforced.

    Takes milliseconds, for large schemas a fraction of a second: not for an event loop.
    """
    if wanted is None:
        return Constraint()
    rules = Rules()
    return _checked(rules.start(body_of(wanted)(rules)), [])


def chat_constraint(
    text: TextSide,
    prompt: str,
    wanted: StructuredOutputsParams | None,
    use: ToolUse,
    thought_tokens: int | None = None,
) -> Constraint:
    """For a reply to a prompt, behind whatever thought the model begins with, of at most
    `thought_tokens`.

    Raises RequestError for what cannot be enforced, calls that are required of a model without
    them among it; as slow as `completion_constraint`.
    """
    form = text.parser.form
    if use.required and form.calls is None:
        raise RequestError(
            "tool_choice asks for a call, but this model's chat template has none; "
            "--tool-call-parser names the form of its calls if it was taught one.",
            "tool_choice",
        )
    calls = None
    limit, unenforced = _thought_limit(text, thought_tokens)
    if use.tools and form.calls is not None:
        specs = []
        for index, tool in enumerate(use.tools):
            spec, problem = _call_spec(json.dumps(tool, sort_keys=False), index)
            specs.append(spec)
            if problem is not None:
                unenforced.append(problem)
        calls = CallRule(specs, use.required, use.several)
    grammar = reply_grammar(
        form,
        prompt,
        text.special_markup,
        body=None if wanted is None else body_of(wanted),
        calls=calls,
        spaced=wanted is not None and wanted.kind in _JSON_KINDS,
        limit=limit,
    )
    return Constraint(None, unenforced) if grammar is None else _checked(grammar, unenforced)


def _thought_limit(text: TextSide, tokens: int | None) -> tuple[ThoughtLimit | None, list[str]]:
    """None where the model does not think, or its thought cannot be ended; that is told."""
    closing, template = text.parser.form.closing, text.chat_template
    if tokens is None or (closing is not None and (not template or closing not in template.source)):
        return None, []
    ids = [] if closing is None else text.tokenizer.encode(closing, add_special_tokens=False)
    if len(ids) != 1:
        return None, ["The budget of thought: no single token ends this model's thought."]
    return ThoughtLimit(tokens, ids[0]), []


def body_of(wanted: StructuredOutputsParams) -> Body:
    options: dict[str, Any] = {}
    if wanted.whitespace_pattern is not None:
        options["whitespace_pattern"] = wanted.whitespace_pattern
    if wanted.disable_any_whitespace:
        options |= {"whitespace_pattern": None, "whitespace_flexible": False}
    match wanted.kind:
        case "json":
            return json_body(wanted.json, options, "structured_outputs.json")
        case "json_object":
            return json_body(ANY_OBJECT, options, "structured_outputs.json_object")
        case "regex":
            return regex_body(wanted.regex or "")
        case "choice":
            return choice_body(wanted.choice or ())
        case "grammar":
            return grammar_body(wanted.grammar or "")
        case _:
            return structural_body(wanted.structural_tag or {})


def _checked(grammar: str, unenforced: list[str]) -> Constraint:
    check(grammar)
    return Constraint(grammar, unenforced)


@lru_cache(maxsize=1024)  # an agent sends the same tools with every request
def _call_spec(tool: str, index: int) -> tuple[CallSpec, str | None]:
    """A tool as grammars want it, and what of its schema is not enforced."""
    value = json.loads(tool)
    function = value.get("function") if isinstance(value.get("function"), dict) else value
    name, schema = function.get("name"), function.get("parameters")
    where = f"tools[{index}].function"
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where} needs a name.", "tools")
    schema = {} if schema is None else schema
    if function.get("strict") is True:
        return CallSpec(name, checked_schema(schema, f"{where}.parameters"), strict=True), None
    try:
        schema = parsed_schema(schema, f"{where}.parameters")
        problem = unenforceable(schema)
    except RequestError as error:
        return CallSpec(name, {}), f"{name}: {error}"
    if problem is None:
        return CallSpec(name, schema, strict=True), None
    if unenforceable(schema, LENIENT) is not None:
        schema = {}
    return CallSpec(name, schema), f"{name}: {problem}"
