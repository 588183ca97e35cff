"""What the tools of a request say about their parameters' types."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagoda.text.parsers.base import ToolSpecs

STRING = frozenset({"string"})
ANYTHING = STRING | {"number", "integer", "boolean", "null", "array", "object"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Tools:
    """The functions of a request by name."""

    def __init__(self, specs: ToolSpecs = ()):
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for spec in specs:
            function = spec.get("function")
            function = function if isinstance(function, Mapping) else spec
            if isinstance(function.get("name"), str):
                self._schemas[function["name"]] = _mapping(function.get("parameters"))

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __len__(self) -> int:
        return len(self._schemas)

    def kinds(self, name: str, parameter: str) -> frozenset[str]:
        """JSON types that a parameter may have; a string where the schema does not tell."""
        schema = self._schemas.get(name, {})
        properties = _mapping(schema.get("properties"))
        if parameter not in properties:
            return STRING
        return frozenset(_kinds(properties[parameter], schema))


def as_json(raw: str, kinds: frozenset[str]) -> str:
    """JSON of a value that a model wrote without quotes: a string if nothing else fits."""
    text = _PYTHON_WORDS.get(raw.strip(), raw.strip())
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(raw, ensure_ascii=False)
    kind = _kind_of(value)
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return text if fits and kind != "string" else json.dumps(raw, ensure_ascii=False)


def _kinds(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Types that a schema allows; each part of it is looked at once, though it refer to itself."""
    waiting, seen = [schema], set[int]()
    while waiting:
        schema = _mapping(waiting.pop())
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        stated = schema.get("type")
        if stated is not None:
            yield from filter(_is_name, stated if isinstance(stated, list) else [stated])
        elif isinstance(schema.get("enum"), list):
            yield from map(_kind_of, schema["enum"])
        elif "const" in schema:
            yield _kind_of(schema["const"])
        elif inner := _alternatives(schema, root):
            waiting += inner
        else:
            yield from ANYTHING


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return list(schema[key])
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return []
    target: Any = root
    for part in reference[2:].split("/"):
        target = _mapping(target).get(part)
    return [target] if isinstance(target, Mapping) else []


def _kind_of(value: Any) -> str:
    kinds: dict[type, str] = {
        str: "string", bool: "boolean", int: "integer", float: "number", list: "array",
        dict: "object",
    }  # fmt: skip
    return kinds.get(type(value), "null")


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
