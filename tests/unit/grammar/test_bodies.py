"""Formats of answers, and what is said of those that cannot be enforced."""

import json

import pytest

from pagoda.base.errors import RequestError
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.constraint import completion_constraint
from pagoda.text.grammar.schema import checked_schema, unenforceable
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

BYTES = ByteGrammars()


def accepts(text: str, **wanted) -> bool:
    constraint = completion_constraint(StructuredOutputsParams(**wanted))
    return BYTES.accepts(constraint.grammar or "", text)


def refusal(**wanted) -> str:
    with pytest.raises(RequestError) as raised:
        completion_constraint(StructuredOutputsParams(**wanted))
    return str(raised.value)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}


@pytest.mark.parametrize("form", [PERSON, json.dumps(PERSON)])
def test_a_schema(form):
    assert accepts('{"name": "Ana\\u00ef", "age": 7}', json=form)
    assert accepts('{"name":"Äß漢","age":7}', json=form)
    assert not accepts('{"name":"Äß漢","age":7, "more": [1]}', json=form)
    assert not accepts('{"name": "Ana", "age": -7}', json=form)
    assert not accepts('{"age": 7}', json=form)


def test_closed_and_tight_objects():
    for said in ({}, {"disable_additional_properties": True}):
        assert not accepts('{"name":"Ana","age":7,"more":1}', json=PERSON, **said)
    opened = {**PERSON, "additionalProperties": True}
    assert accepts('{"name":"Ana","age":7,"more":1}', json=opened)
    tight = {"json": PERSON, "disable_any_whitespace": True}
    assert accepts('{"name":"Ana","age":7}', **tight)
    assert not accepts('{"name": "Ana","age":7}', **tight)
    assert accepts('{"name":_"Ana","age":7}', json=PERSON, whitespace_pattern="_?")


def test_the_other_kinds():
    assert accepts('{"a": [1, {"b": null}]}', json_object=True)
    assert not accepts("[1]", json_object=True)
    assert accepts("2026-11-21", regex=r"\d{4}-\d\d-\d\d")
    assert not accepts("2026-11-2", regex=r"\d{4}-\d\d-\d\d")
    assert accepts("a/b", regex="^a/b$")
    assert accepts('say "yes"', choice=["no", 'say "yes"'])
    assert not accepts("say", choice=["no", 'say "yes"'])


@pytest.mark.parametrize(
    "grammar",
    ['root ::= "a" b+\nb ::= "b" | [0-9]', 'start: "a" b+\nb: "b" | /[0-9]/'],
    ids=["GBNF", "Lark"],
)
def test_grammars(grammar):
    assert accepts("ab7b", grammar=grammar)
    assert not accepts("a", grammar=grammar)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"json": {"properties": {"a": {"items": {"not": {}}}}}}, "`not` at #/properties/a/items"),
        ({"json": {"anyOf": [{}, {"uniqueItems": True}]}}, "`uniqueItems` at #/anyOf/1"),
        ({"json": {"type": "objec"}}, "objec"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": {"$ref": "http://127.0.0.1/x"}}, "127.0.0.1"),
        ({"json": {"type": "string", "pattern": "(?=a)"}}, "look-around"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(?=a)"}, "look-around"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": "root ::= ("}, ""),
        ({"structural_tag": {"type": "structural_tag", "format": {"type": "odd"}}}, "'odd'"),
        ({"structural_tag": "{"}, "not valid JSON"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "structures"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_named(wanted, words):
    assert words in refusal(**wanted)


def test_deep_and_large_schemas_are_refused():
    deep: dict = {}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert "deeper than 64" in refusal(json=deep)
    assert "larger than" in refusal(json={"enum": ["x" * 1000] * 300})


def test_exactly_one_kind():
    with pytest.raises(RequestError, match="exactly one"):
        StructuredOutputsParams()
    with pytest.raises(RequestError, match="json and regex"):
        StructuredOutputsParams(json={}, regex="a")
    with pytest.raises(RequestError, match="non-empty"):
        StructuredOutputsParams(choice=[""])
    with pytest.raises(RequestError, match="exactly one"):
        StructuredOutputsParams(json_object=False)


def test_unknown_keywords_can_be_passed_over():
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert unenforceable(schema) == "`uniqueItems` at # is not supported"
    assert unenforceable(schema, {"lenient": True}) is None
    with pytest.raises(RequestError):
        checked_schema(schema, "tools")


LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<f=x>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f="],
}
TREE = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "A:"},
            {"type": "or", "elements": [
                {"type": "json_schema", "json_schema": {"type": "boolean"}},
                {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
            ]},
            {"type": "tags_with_separator", "separator": ",", "tags": [
                {"begin": "[", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "]"},
            ]},
        ],
    },
}  # fmt: skip


def test_structural_tags():
    def accepted(tag: dict, text: str) -> bool:
        return accepts(text, structural_tag=tag)

    for text in ("", "words < more", "a <f=x>12</f> b <f=x>3</f>"):
        assert accepted(LEGACY, text), text
    for text in ("<f=x>no</f>", "<f=y>1</f>"):
        assert not accepted(LEGACY, text), text
    for text in ("A:true", "A:<t>any < text</t>[1],[22]", "A:false[3]"):
        assert accepted(TREE, text), text
    for text in ("true", "A:maybe", "A:true[1][2]", "A:true[x]"):
        assert not accepted(TREE, text), text
