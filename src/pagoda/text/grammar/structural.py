"""Structural tags: text whose tagged parts follow schemas, in vLLM's two notations.

Legacy: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`. Format: a tree of typed
parts, as https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html describes them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.text.grammar.body import grammar_body
from pagoda.text.grammar.reply import Body
from pagoda.text.grammar.rules import Rules, either, optional, repeated
from pagoda.text.grammar.schema import checked_schema, depth

_PARAM = "structural_tag"
_MAX_DEPTH = 64


def structural_body(tag: str | Mapping[str, Any]) -> Body:
    """Raises RequestError for a tag that is not understood."""
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"structural_tag is not valid JSON: {error}.", _PARAM) from error
    if not isinstance(tag, Mapping):
        raise RequestError("structural_tag is an object.", _PARAM)
    if depth(tag) > _MAX_DEPTH:
        raise RequestError(f"structural_tag is nested deeper than {_MAX_DEPTH}.", _PARAM)
    tree = tag["format"] if "format" in tag else _from_legacy(tag)
    _part(Rules(), tree, _PARAM)  # what is wrong is said before anything runs
    return lambda rules: _part(rules, tree, _PARAM)


def _from_legacy(tag: Mapping[str, Any]) -> dict[str, Any]:
    structures = _list(tag, "structures", _PARAM)
    tags = [
        {
            "begin": one.get("begin"),
            "content": {"type": "json_schema", "json_schema": one.get("schema", True)},
            "end": one.get("end", ""),
        }
        for one in structures
        if isinstance(one, Mapping)
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


def _part(rules: Rules, part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    write = _PARTS.get(kind) if isinstance(kind, str) else None
    if write is None:
        raise RequestError(
            f"{path}.type is {kind!r}; it must be one of {', '.join(sorted(_PARTS))}.", _PARAM
        )
    return write(rules, part, path)


def _const(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return rules.literal(_text(part, "value", path))


def _json_schema(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    schema = checked_schema(part.get("json_schema", True), f"{path}.json_schema")
    return rules.json(schema)


def _any_text(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return rules.anything()


def _regex(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return rules.regex(_text(part, "pattern", path))


def _grammar(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return grammar_body(_text(part, "grammar", path))(rules)


def _sequence(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return rules.rule(" ".join(_elements(rules, part, path)))


def _or(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    return rules.rule(either(*_elements(rules, part, path)))


def _tag(rules: Rules, part: Mapping[str, Any], path: str, begin: str | None = None) -> str:
    """`begin`: what is left of the tag's beginning."""
    opened = rules.literal(_text(part, "begin", path) if begin is None else begin)
    content, end = part.get("content"), _text(part, "end", path)
    if isinstance(content, Mapping) and content.get("type") == "any_text" and end:
        return rules.rule(f"{opened} {rules.until(end)}")
    return rules.rule(f"{opened} {_part(rules, content, f'{path}.content')} {rules.literal(end)}")


def _triggered_tags(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    """Text in which what begins with a trigger is one of the tags."""
    tags = _tags(part, path)
    groups = []
    for trigger in _list(part, "triggers", path):
        if not isinstance(trigger, str) or not trigger:
            raise RequestError(f"{path}.triggers takes non-empty strings.", _PARAM)
        behind = [
            _tag(rules, tag, f"{path}.tags.{i}", _text(tag, "begin", path)[len(trigger) :])
            for i, tag in enumerate(tags)
            if _text(tag, "begin", f"{path}.tags.{i}").startswith(trigger)
        ]
        if behind:
            groups.append(rules.rule(f"{rules.until(trigger)} {either(*behind)}"))
    if not groups:
        raise RequestError(f"No tag of {path} begins with one of its triggers.", _PARAM)
    once = part.get("stop_after_first") is True
    tagged = either(*groups)
    needed = part.get("at_least_one") is True
    if once:
        return rules.rule(tagged if needed else either(tagged, rules.anything()))
    more = f"{repeated(tagged)} {rules.anything()}"
    return rules.rule(f"{tagged} {more}" if needed else more)


def _tags_with_separator(rules: Rules, part: Mapping[str, Any], path: str) -> str:
    one = either(*(_tag(rules, tag, f"{path}.tags.{i}") for i, tag in enumerate(_tags(part, path))))
    if part.get("stop_after_first") is True:
        tagged = one
    else:
        separator = rules.literal(_text(part, "separator", path))
        tagged = f"{one} {repeated(f'{separator} {one}')}"
    tagged = rules.rule(tagged)
    return tagged if part.get("at_least_one") is True else optional(tagged)


def _elements(rules: Rules, part: Mapping[str, Any], path: str) -> list[str]:
    elements = _list(part, "elements", path)
    return [_part(rules, one, f"{path}.elements.{i}") for i, one in enumerate(elements)]


def _tags(part: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    tags = _list(part, "tags", path)
    if not all(isinstance(tag, Mapping) for tag in tags):
        raise RequestError(f"{path}.tags takes objects.", _PARAM)
    return tags


def _list(part: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = part.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{path}.{name} must be a list that is not empty.", _PARAM)
    return value


def _text(part: Mapping[str, Any], name: str, path: str) -> str:
    value = part.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{path}.{name} must be a string.", _PARAM)
    return value


_PARTS: dict[str, Callable[[Rules, Mapping[str, Any], str], str]] = {
    "const_string": _const,
    "json_schema": _json_schema,
    "any_text": _any_text,
    "regex": _regex,
    "grammar": _grammar,
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
