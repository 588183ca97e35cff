"""How the models of a family write tool calls, as a grammar."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from pagoda.text.grammar.rules import Rules, either, repeated

MOST_CALLS = 32
"""Calls of a reply that has to call: small models write the same one again and again."""
LENIENT = {"lenient": True}
"""Keywords that are not known are passed over."""
# Counting takes a state of the lexer per character.
_MOST_COUNTED = 2000


@dataclass(frozen=True)
class CallSpec:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    """Every keyword of `parameters` is enforced (it was checked that they can be)."""

    @property
    def options(self) -> Mapping[str, Any]:
        return {} if self.strict else LENIENT


Arguments = Callable[[Rules, CallSpec], str]


def json_arguments(rules: Rules, tool: CallSpec) -> str:
    return rules.json({"type": "object", **tool.parameters}, tool.options)


class WrittenCall(NamedTuple):
    """A call as it stands in a conversation."""

    name: str
    arguments: str
    """JSON of an object, unless a model wrote it wrong."""
    call_id: str | None = None


@dataclass(frozen=True)
class CallForm:
    """The text around the parts of a call: `before`, then for each call `head` NAME `middle`
    ARGUMENTS `tail`, divided by `between`, then `after`."""

    head: str
    middle: str
    tail: str
    between: str = ""
    before: str = ""
    after: str = ""
    single: bool = False
    """There is one call to a reply."""
    numbered: bool = False
    """A colon and the call's number, from 0 on, stand behind its name."""
    trigger: str = ""
    """With what `before` and `head` begin and no other text does: where it comes in a reply, a call
    follows. Empty where nothing tells."""
    arguments: Arguments = json_arguments
    of_json: Callable[[str], str] | None = None
    """Writes arguments that are given as JSON, where the form is another."""

    @property
    def is_json(self) -> bool:
        """Whether the arguments are a JSON object."""
        return self.arguments is json_arguments

    @property
    def can_write(self) -> bool:
        """Whether `written` knows the form."""
        return self.is_json or self.of_json is not None

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Calls as a model writes them, for forms that `can_write`. Their ids are left out where
        the form has no object around a call."""
        return self.before + self.between.join(map(self._written, count(), calls)) + self.after

    def _written(self, index: int, call: WrittenCall) -> str:
        has_place = call.call_id is not None and self.tail.startswith("}")
        marked = f', "id": {json.dumps(call.call_id, ensure_ascii=False)}' if has_place else ""
        name = f"{call.name}:{index}" if self.numbered else call.name
        arguments = call.arguments if self.of_json is None else self.of_json(call.arguments)
        return f"{self.head}{name}{self.middle}{arguments}{marked}{self.tail}"

    def calls(self, rules: Rules, tools: Sequence[CallSpec], *, several: bool) -> str:
        """One call, or up to `MOST_CALLS`, and nothing else."""
        call = self._call(rules, tools, self.head)
        several = several and not self.single
        more = repeated(f"{rules.literal(self.between)} {call}", MOST_CALLS - 1) if several else ""
        return f"{rules.literal(self.before)} {call} {more} {rules.literal(self.after)}"

    def calls_in_text(self, rules: Rules, tools: Sequence[CallSpec]) -> str:
        """Text with calls in it; what opens one is followed by a right one."""
        if self.before:
            rest = self.before.removeprefix(self.trigger)
            call = self._call(rules, tools, self.head)
            more = repeated(f"{rules.literal(self.between)} {call}")
            group = f"{rules.literal(rest)} {call} {more} {rules.literal(self.after)}"
        else:
            group = self._call(rules, tools, self.head.removeprefix(self.trigger))
        opened = rules.until(self.trigger)
        return f"{repeated(rules.rule(f'{opened} {group}'))} {rules.anything()}"

    def _call(self, rules: Rules, tools: Sequence[CallSpec], head: str) -> str:
        middle = rules.literal(self.middle)
        if self.numbered:
            middle = f"{rules.rule('/:[0-9]{1,3}/')} {middle}"
        named = [
            f"{rules.literal(tool.name)} {middle} {self.arguments(rules, tool)}" for tool in tools
        ]
        return rules.rule(f"{rules.literal(head)} {either(*named)} {rules.literal(self.tail)}")


JSON_IN_TAG = CallForm(
    '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", trigger="<tool_call>"
)
"""Hermes's form, which most models without one of their own write as well."""


def takes_nothing(tool: CallSpec) -> bool:
    """Whether a call has no arguments: none are named, and no others may be."""
    parameters = tool.parameters
    return parameters.get("properties") == {} and parameters.get("additionalProperties") is False


def properties_of(tool: CallSpec) -> list[tuple[str, Any, bool]]:
    """(name, schema, whether it is required) of each parameter, in the order of the schema."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = set(required) if isinstance(required, list) else set()
    return [(name, schema, name in needed) for name, schema in properties.items()]


def in_order(rules: Rules, parts: Sequence[tuple[str, bool]], separator: str = "") -> str:
    """(expression, whether it is required) one after the other, with a separator between any two
    that are there."""
    divider = rules.literal(separator) if separator else ""
    # From the last to the first: what follows when something precedes, and when nothing does.
    behind, first = '""', '""'
    for expression, required in reversed(parts):
        here = f"{divider} {expression} {behind}"
        fresh = f"{expression} {behind}"
        if required:
            behind, first = rules.rule(here), rules.rule(fresh)
        else:
            behind, first = (
                rules.rule(either(here, behind)),
                rules.rule(either(fresh, first)),
            )
    return first


def is_text(schema: Any) -> bool:
    """Whether a schema takes strings of any content and nothing else."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema


def most_characters(schema: Mapping[str, Any]) -> int | None:
    """What a schema of strings allows; None for more than is worth counting."""
    most = schema.get("maxLength")
    return most if isinstance(most, int) and 0 <= most <= _MOST_COUNTED else None


def text_choices(schema: Any) -> list[str] | None:
    """The strings that an enum of strings allows."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(values, list) and values and all(isinstance(v, str) for v in values):
        return list(values)
    return None


@dataclass(frozen=True)
class TaggedArguments:
    """A tag for each parameter, around values that are written without quotes."""

    open: tuple[str, str]
    """Around the parameter's name."""
    close: tuple[str, str, str]
    """What precedes the tag, the tag, and what follows it."""
    open_json: str = ""
    """Behind the name of a parameter whose value is JSON, if it differs."""

    def __call__(self, rules: Rules, tool: CallSpec) -> str:
        given = properties_of(tool)
        if not given and not takes_nothing(tool):
            name = rules.rule(r"/[^<>\n]{1,256}/")
            one = f"{rules.literal(self.open[0])} {name} {rules.literal(self.open[1])}"
            return repeated(rules.rule(f"{one} {self._text(rules, None)}"))
        return in_order(
            rules,
            [
                (self._parameter(rules, tool, name, schema), needed)
                for name, schema, needed in given
            ],
        )

    def _parameter(self, rules: Rules, tool: CallSpec, name: str, schema: Any) -> str:
        choices = text_choices(schema)
        is_json = choices is None and not is_text(schema)
        behind = (is_json and self.open_json) or self.open[1]
        opened = rules.literal(self.open[0] + name + behind)
        closed = rules.literal("".join(self.close))
        if choices is not None:
            value = f"{either(*map(rules.literal, choices))} {closed}"
        elif is_text(schema):
            value = self._text(rules, most_characters(schema))
        else:
            value = f"{rules.json(with_definitions(schema, tool), tool.options)} {closed}"
        return rules.rule(f"{opened} {value}")

    def _text(self, rules: Rules, most: int | None) -> str:
        """It must not hold the tag, whatever precedes that."""
        before, tag, behind = self.close
        most = None if most is None else most + len(before)
        return f"{rules.until(tag, most)} {rules.literal(behind)}"


def with_definitions(schema: Any, tool: CallSpec) -> Any:
    """References of a part point into the whole."""
    kept = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return {**kept, **schema} if isinstance(schema, Mapping) else schema
