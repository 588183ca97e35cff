"""Objects that name their properties have no others, unless a schema says so: a model would write
more of them for as long as it may.

`additionalProperties` decides wherever it is given, and an object that names none stays open. The
parts of a schema that describe one object together (`allOf`, a `$ref` and what stands beside it,
`anyOf` and `oneOf`) are closed together, so that none forbids what another asks for.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pagoda.base.errors import RequestError

# Values at places of their own; all else of a schema describes the same value as it does.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems", "unevaluatedItems")
_LISTED = ("items", "prefixItems")
_CHOICES = ("anyOf", "oneOf")
# What says itself how many properties there are.
_COUNTED = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "minProperties",
    "maxProperties",
)  # fmt: skip
_FINITE = ("const", "enum")
# Parts and names looked at: a few times what a schema of the largest size holds.
_MOST_WORK = 1 << 18


def closed(schema: Mapping[str, Any], param: str) -> dict[str, Any]:
    """A schema whose objects are closed. RequestError where that would take too much."""
    return _Closing(schema, param).whole()


@dataclass
class _Keys:
    """The properties that parts of a schema name for one object."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    given: bool = False
    """There are properties among them, rather than required names alone."""
    counted: bool = False
    """A part says itself which others there may be."""

    def beside(self, other: "_Keys") -> "_Keys":
        return _Keys(
            self.names | other.names,
            self.patterns | other.patterns,
            self.given or other.given,
            self.counted or other.counted,
        )


class _Closing:
    def __init__(self, schema: Mapping[str, Any], param: str):
        self._schema = schema
        self._param = param
        self._spent = 0
        self._open: dict[int, str] = {}
        """The name of an open copy of what is referred to and closed with others, by its id."""
        self._waiting: list[tuple[str, Any]] = []
        self._targets: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        result: dict[str, Any] = self._close(self._schema, _Keys())
        copies = {}
        while self._waiting:
            name, target = self._waiting.pop()
            copies[name] = self._inside(target)
        if copies:
            result["$defs"] = {**_mapping(result.get("$defs")), **copies}
        return result

    def _close(self, part: Any, beside: _Keys) -> Any:
        """A part, closed together with `beside`, which other parts name for the same object."""
        if not isinstance(part, Mapping):
            return part
        if not beside.names and not beside.patterns and _is_reference(part):
            # To what is closed where it stands.
            rest = {key: value for key, value in part.items() if key != "$ref"}
            return {**self._inside(rest), "$ref": part["$ref"]}
        group = next((key for key in _CHOICES if isinstance(part.get(key), list)), None)
        if group is not None:
            rest = {key: value for key, value in part.items() if key != group}
            around = self._together(beside, [rest])
            if around.counted:
                return self._inside(part)
            choices = [self._close(choice, around) for choice in part[group]]
            return {**self._inside(rest), group: choices}
        carrier = _carrier(part)
        if carrier is not None:
            return self._close_member(part, carrier, beside)
        keys = self._together(beside, [part])
        if keys.counted or not keys.given or any(key in part for key in _FINITE):
            return self._inside(part)
        return self._closed_here(part, keys)

    def _close_member(self, part: Mapping[str, Any], index: int, beside: _Keys) -> Any:
        """One of `allOf` is closed for all of them, as it has choices or is alone."""
        members = part["allOf"]
        rest = {key: value for key, value in part.items() if key != "allOf"}
        others = [*members[:index], *members[index + 1 :]]
        around = self._together(beside, [rest, *others])
        if around.counted:
            return self._inside(part)
        written = [self._inside(member) for member in members]
        written[index] = self._close(members[index], around)
        return {**self._inside(rest), "allOf": written}

    def _closed_here(self, part: Mapping[str, Any], keys: _Keys) -> dict[str, Any]:
        result: dict[str, Any] = self._inside(part)
        for key, named in (("properties", keys.names), ("patternProperties", keys.patterns)):
            own = result.get(key, {})
            # What is no mapping is left, to be refused.
            if named and isinstance(own, Mapping):
                result[key] = {**dict.fromkeys(named, True), **own}
        result["additionalProperties"] = False
        return result

    def _inside(self, part: Any) -> Any:
        """A part that stays open itself, with all that lies in it closed."""
        if not isinstance(part, Mapping):
            return part
        result = dict(part)
        self._spend(1 + len(part))
        for key, value in part.items():
            if key in _NAMED and isinstance(value, Mapping):
                result[key] = {name: self._close(inner, _Keys()) for name, inner in value.items()}
            elif key in _LISTED and isinstance(value, list):
                self._spend(len(value))
                result[key] = [self._close(inner, _Keys()) for inner in value]
            elif key in _SINGLE:
                result[key] = self._close(value, _Keys())
            elif key in ("allOf", *_CHOICES) and isinstance(value, list):
                self._spend(len(value))
                result[key] = [self._inside(member) for member in value]
            elif key == "$ref" and isinstance(value, str):
                result[key] = self._open_reference(value)
        return result

    def _open_reference(self, reference: str) -> str:
        target = self._target(reference)
        if target is None:
            return reference
        if id(target) not in self._open:
            name = f"open-{len(self._open)}"
            while name in _mapping(self._schema.get("$defs")):
                name += "-"
            self._open[id(target)] = name
            self._waiting.append((name, target))
        return f"#/$defs/{self._open[id(target)]}"

    def _together(self, beside: _Keys, parts: Iterable[Any]) -> _Keys:
        keys = self._keys(parts)
        self._spend(len(beside.names) + len(beside.patterns))
        return beside.beside(keys)

    def _spend(self, amount: int) -> None:
        """What the size of a schema bounds only where its parts do not multiply each other."""
        self._spent += amount
        if self._spent > _MOST_WORK:
            raise RequestError(
                "The schema has too many parts that describe the same objects; give these "
                "objects additionalProperties.",
                self._param,
            )

    def _keys(self, parts: Iterable[Any]) -> _Keys:
        """What the parts name for the object that all of them describe, choices included."""
        keys, waiting, followed = _Keys(), deque(parts), set()
        while waiting:
            part = waiting.popleft()
            if not isinstance(part, Mapping):
                self._spend(1)
                continue
            properties, patterns = part.get("properties"), part.get("patternProperties")
            self._spend(1 + len(_mapping(properties)) + len(_mapping(patterns)))
            required = part.get("required")
            if isinstance(properties, Mapping):
                keys.names |= dict.fromkeys(properties)
                keys.given = True
            if isinstance(patterns, Mapping):
                keys.patterns |= dict.fromkeys(patterns)
                keys.given = True
            if isinstance(required, list):
                self._spend(len(required))
                keys.names |= {name: None for name in required if isinstance(name, str)}
            keys.counted |= any(key in part for key in _COUNTED)
            for key in ("allOf", *_CHOICES):
                if isinstance(part.get(key), list):
                    waiting += part[key]
            # Not enforced, and told to the model: what follows from them may be written.
            waiting += [part[key] for key in ("then", "else") if key in part]
            if isinstance(part.get("dependentSchemas"), Mapping):
                waiting += part["dependentSchemas"].values()
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                waiting.append(self._target(reference))
        return keys

    def _target(self, reference: str) -> Any:
        """What a JSON pointer leads to; None for other references."""
        if reference not in self._targets:
            self._targets[reference] = _resolved(self._schema, reference)
        return self._targets[reference]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_reference(part: Mapping[str, Any]) -> bool:
    """Whether nothing that names properties stands beside a reference."""
    other = ("properties", "patternProperties", "required", "allOf", *_CHOICES, *_COUNTED)
    return isinstance(part.get("$ref"), str) and not any(key in part for key in other)


def _carrier(part: Mapping[str, Any]) -> int | None:
    """Index of the member of `allOf` that is closed for all of its part, if one is."""
    members = part.get("allOf")
    if not isinstance(members, list):
        return None
    if len(members) == 1:
        return 0
    return next((i for i, member in enumerate(members) if _chooses(member)), None)


def _chooses(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    members = part.get("allOf")
    inner = members if isinstance(members, list) else []
    return any(key in part for key in _CHOICES) or any(map(_chooses, inner))


def _resolved(schema: Any, reference: str) -> Any:
    if reference != "#" and not reference.startswith("#/"):
        return None
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        elif isinstance(schema, Mapping) and step in schema:
            schema = schema[step]
        else:
            return None
    return schema
