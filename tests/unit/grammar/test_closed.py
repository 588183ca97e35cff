"""Objects that name their properties have no others; what several parts name together stays."""

import json
from typing import Any

import pytest

from pagoda.base.errors import RequestError
from pagoda.text.grammar.rules import Rules
from pagoda.text.grammar.schema import checked_schema
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

BYTES = ByteGrammars()
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def of(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def refs(definitions: dict[str, Any], **schema: Any) -> dict[str, Any]:
    return {"$defs": definitions, **schema}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


A, B = of("a", a=INTEGER), of("b", b=TEXT)
OPEN = {"additionalProperties": True}
A1, AB = '{"a": 1}', '{"a": 1, "b": "x"}'
KIND = {"kind": TEXT}
TREE = refs({"node": of("v", v=INTEGER, next=ref("node"))}, **ref("node"))

CASES = {
    "named": (A, [A1], [AB]),
    "opened": ({**A, **OPEN}, [A1, AB], ['{"b": "x"}']),
    "others of a kind": ({**A, "additionalProperties": TEXT}, [AB], ['{"a": 1, "b": 2}']),
    "any object": ({"type": "object"}, ["{}", AB], ["[]"]),
    "any value": ({}, ["{}", AB, "[1]"], ["]"]),
    "no properties": ({"type": "object", "properties": {}}, ["{}"], [A1]),
    "required alone": ({"type": "object", "required": ["a"]}, [A1, AB], ["{}"]),
    "required beside": (of("a", "z", a=INTEGER), ['{"a": 1, "z": [0]}'], ['{"a": 1}']),
    "patterns": ({**A, "patternProperties": {"^x": INTEGER}}, ['{"a": 1, "x1": 2}'], [AB]),
    "counted": ({**A, "maxProperties": 2}, [A1, AB], ['{"a": 1, "b": 2, "c": 3}']),
    "nested": (of("o", o=A), ['{"o": {"a": 1}}'], [f'{{"o": {AB}}}', '{"o": {"a": 1}, "p": 1}']),
    "nested opened": (of("o", o={**A, **OPEN}), [f'{{"o": {AB}}}'], ['{"o": {"a": 1}, "p": 1}']),
    "opened around": ({**of("o", o=A), **OPEN}, ['{"o": {"a": 1}, "p": 1}'], [f'{{"o": {AB}}}']),
    "items": ({"type": "array", "items": A}, [f"[{A1}]"], [f"[{AB}]"]),
    "tuples": ({"type": "array", "prefixItems": [A]}, [f"[{A1}]"], [f"[{AB}]"]),
    "values": ({"type": "object", "additionalProperties": A}, [f'{{"x": {A1}}}'],
               [f'{{"x": {AB}}}']),
    "all of": ({"allOf": [A, B]}, [AB], [A1, '{"a": 1, "b": "x", "c": 1}']),
    "all of one": ({"allOf": [A]}, [A1], [AB]),
    "all of beside": ({**B, "allOf": [A]}, ['{"b": "x", "a": 1}'], ['{"b": "x", "a": 1, "c": 1}']),
    "all of, one opened": ({"allOf": [A, {**B, **OPEN}]}, ['{"a": 1, "b": "x", "c": 1}'], [A1]),
    "all of references": (refs({"A": A, "B": B}, allOf=[ref("A"), ref("B")]), [AB],
                          [A1, '{"a": 1, "b": "x", "c": 1}']),
    "extended and alone": (
        refs({"A": A}, **of("x", "y", x={"allOf": [ref("A"), B]}, y=ref("A"))),
        [f'{{"x": {AB}, "y": {A1}}}'],
        [f'{{"x": {AB}, "y": {AB}}}', f'{{"x": {{"a": 1, "b": "x", "c": 1}}, "y": {A1}}}'],
    ),
    "a reference with more": (refs({"A": A}, **ref("A"), properties={"b": TEXT}), [A1, AB],
                              ['{"a": 1, "c": 1}', '{"a": "x"}']),
    "any of": ({"anyOf": [A, B]}, [A1, '{"b": "x"}'], [AB, "{}"]),
    "one of": ({"oneOf": [A, B, {"type": "null"}]}, [A1, '{"b": "x"}', "null"], [AB]),
    "any of, one opened": ({"anyOf": [{**A, **OPEN}, B]}, [A1, AB], ['{"b": "x", "a": "x"}']),
    "any of, one free": ({"anyOf": [A, {"type": "object"}]}, [A1, AB], ["[]"]),
    "choices beside": ({**of("kind", **KIND), "oneOf": [A, B]},
                       ['{"kind": "A", "a": 1}', '{"kind": "B", "b": "x"}'],
                       ['{"kind": "A", "a": 1, "b": "x"}', '{"kind": "A", "a": 1, "c": 1}',
                        '{"kind": "A"}', '{"kind": 1, "a": 1}']),
    "choices of references": (refs({"A": A, "B": B}, **of("kind", **KIND),
                                   oneOf=[ref("A"), ref("B")]),
                              ['{"kind": "A", "a": 1}', '{"kind": "B", "b": "x"}'],
                              ['{"kind": "A", "a": 1, "b": "x"}', '{"kind": "A", "c": 1}']),
    "choices within all of": ({"allOf": [of("kind", **KIND), {"anyOf": [A, B]}]},
                              ['{"kind": "A", "a": 1}', '{"kind": "B", "b": "x"}'],
                              ['{"kind": "A", "a": 1, "b": "x"}', '{"kind": "A"}']),
    "choices of what is required": ({**of(a=INTEGER, b=TEXT), "anyOf": [
                                        {"required": ["a"]}, {"required": ["b"]}]},
                                    [A1, AB, '{"b": "x"}'], ["{}", '{"a": 1, "c": 1}']),
    "nullable": ({"anyOf": [A, {"type": "null"}]}, [A1, "null"], [AB]),
    "recursion": (TREE, ['{"v": 1, "next": {"v": 2}}'], ['{"v": 1, "next": {"v": 2, "w": 1}}']),
    "recursion that is extended": (
        {**TREE, **of("v", "w", w=TEXT)},
        ['{"v": 1, "w": "x"}', '{"v": 1, "next": {"v": 2}, "w": "x"}'],
        ['{"v": 1, "w": "x", "z": 1}', '{"v": 1, "next": {"v": 2, "w": "x"}, "w": "x"}'],
    ),
    "the whole": (of("v", v=INTEGER, next={"$ref": "#"}), ['{"v": 1, "next": {"v": 2}}'],
                  ['{"v": 1, "next": {"v": 2, "w": 1}}']),
    "a pointer": (of("x", "y", x=A, y={"allOf": [{"$ref": "#/properties/x"}, B]}),
                  [f'{{"x": {A1}, "y": {AB}}}'], [f'{{"x": {AB}, "y": {AB}}}']),
    "constants": ({"enum": [{"a": 1}, {"b": 2}]}, [A1], ['{"a": 2}']),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_objects_are_closed(case: str) -> None:
    schema, good, bad = CASES[case]
    before = json.dumps(schema)
    rules = Rules()
    grammar = rules.start(rules.json(checked_schema(schema, "schema")))
    assert [text for text in good if not BYTES.accepts(grammar, text)] == []
    assert [text for text in bad if BYTES.accepts(grammar, text)] == []
    assert json.dumps(schema) == before


ODD = [
    {"$defs": 3, "allOf": [{"$ref": "#/$defs/x"}, A]}, {"$ref": "#/$defs/x", "$defs": []},
    {"allOf": [ref("x"), A]}, {"allOf": 3}, {"anyOf": {}}, {"properties": [], "required": 3},
    {"anyOf": [{"properties": []}, A], "properties": {"a": INTEGER}},
    {"anyOf": [1, None, []], "properties": {"a": 3}}, {"items": [A, 3]}, {"$ref": 5, **A},
    {"$ref": "#", "allOf": [{"$ref": "#"}]},
    refs({"x": ref("y"), "y": ref("x")}, allOf=[ref("x"), A]),
    {"$ref": "http://elsewhere.example/x", **A}, {"allOf": [{"$ref": "#/allOf"}, A]},
]  # fmt: skip


@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_odd_schemas_are_refused_or_taken(schema: dict[str, Any]) -> None:
    try:
        checked_schema(schema, "schema")
    except RequestError as error:
        assert str(error)


@pytest.mark.parametrize("choice", [{}, ref("x"), {"required": ["a"]}])
def test_parts_that_multiply_are_refused(choice: dict[str, Any]) -> None:
    many = {f"p{i}": True for i in range(3000)}
    schema = refs({"x": {"properties": many}}, properties=many, anyOf=[choice] * 3000)
    with pytest.raises(RequestError, match="too many parts"):
        checked_schema(schema, "schema")
