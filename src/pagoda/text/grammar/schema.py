"""JSON schemas of requests: what cannot be enforced is named, with its place."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from pagoda.base.errors import RequestError
from pagoda.text.grammar.closed import closed
from pagoda.text.grammar.rules import Rules

MAX_DEPTH = 64
_MAX_BYTES = 1 << 18
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: (\[.*\])")
# Schemas stand directly in these, or in the values of these.
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_IN_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def checked_schema(schema: Any, param: str) -> dict[str, Any]:
    """A schema that can be enforced whole, as an object.

    Raises RequestError that names the keyword that cannot, and its place.
    """
    parsed = parsed_schema(schema, param)
    problem = unenforceable(parsed)
    if problem is not None:
        raise RequestError(f"The JSON schema cannot be enforced: {problem}.", param)
    return parsed


def parsed_schema(schema: Any, param: str) -> dict[str, Any]:
    """A schema (text, an object or a boolean) as an object, its objects closed. RequestError for
    anything else."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"The schema is not valid JSON: {error}.", param) from error
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise RequestError("A JSON schema is an object or a boolean.", param)
    if depth(schema) > MAX_DEPTH:
        raise RequestError(f"The schema is nested deeper than {MAX_DEPTH} levels.", param)
    if len(json.dumps(schema)) > _MAX_BYTES:
        raise RequestError(f"The schema is larger than {_MAX_BYTES >> 10} KiB.", param)
    return closed(schema, param)


def unenforceable(
    schema: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> str | None:
    """Why a schema cannot be enforced; None if it can."""
    rules = Rules()
    grammar = rules.start(rules.json(schema, options))
    message = LLMatcher.validate_grammar(grammar)
    if not message:
        return None
    unknown = _UNKNOWN_KEYS.search(message)
    if unknown is None:
        return shortened(message)
    places = [_place(schema, key) for key in json.loads(unknown[1])]
    return f"{' and '.join(places)} {'is' if len(places) == 1 else 'are'} not supported"


def shortened(message: str) -> str:
    """The first lines of what llguidance says, without the places in a grammar nobody sees."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("error:")), lines[0])
    return error.removeprefix("error:").strip()[:500]


def depth(value: Any) -> int:
    """Levels of nesting, without recursion."""
    level, most = [value], 0
    while level:
        most += 1
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, Mapping) else one)
            if isinstance(inner, Mapping | list)
        ]
    return most


def _place(schema: Mapping[str, Any], keyword: str) -> str:
    places = (path for path, part in _parts(schema) if keyword in part)
    path = next(places, None)
    return f"`{keyword}`" if path is None else f"`{keyword}` at {path or '#'}"


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each schema in a schema, with its JSON pointer."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        path, part = waiting.pop(0)
        if not isinstance(part, Mapping):
            continue
        yield path, part
        for key, value in part.items():
            if key in _IN_MAPPINGS and isinstance(value, Mapping):
                waiting += [(f"{path}/{key}/{name}", inner) for name, inner in value.items()]
            elif key in _IN_LISTS and isinstance(value, list):
                waiting += [(f"{path}/{key}/{i}", inner) for i, inner in enumerate(value)]
            elif isinstance(value, Mapping):
                waiting.append((f"{path}/{key}", value))
