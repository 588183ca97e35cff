import json

import pytest

from pagoda.text.parsers.tools import ANYTHING, Tools, as_json

KINDS = [
    ({"type": "integer"}, {"integer"}),
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
    ({"const": True}, {"boolean"}),
    ({"anyOf": [{"type": "array"}, {"oneOf": [{"type": "object"}]}]}, {"array", "object"}),
    ({"$ref": "#/$defs/a"}, {"number"}),
    ({"$ref": "#/$defs/loop"}, {"number"}),
    ({"$ref": "#/nowhere"}, ANYTHING),
    ({"$ref": "https://example.com/schema"}, ANYTHING),
    ({}, ANYTHING),
    (True, ANYTHING),
    ({"type": 5}, set()),
    ({"type": {"a": 1}}, set()),
]
DEFS = {
    "a": {"type": "number"},
    # Without care, ways through it are as many as atoms in the world.
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}] * 50 + [{"$ref": "#/$defs/a"}]},
}


@pytest.mark.parametrize(("schema", "kinds"), KINDS)
def test_types_of_a_parameter(schema, kinds):
    parameters = {"properties": {"p": schema}, "$defs": DEFS}
    tools = Tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    assert tools.kinds("f", "p") == kinds
    assert tools.kinds("f", "other") == tools.kinds("g", "p") == {"string"}


def test_tools_in_the_form_of_responses_and_odd_ones():
    tools = Tools([{"name": "f", "parameters": {"properties": {"p": {"type": "null"}}}}, {}])
    assert "f" in tools and len(tools) == 1 and tools.kinds("f", "p") == {"null"}
    assert Tools([{"function": {"name": "f", "parameters": None}}]).kinds("f", "p") == {"string"}


@pytest.mark.parametrize(
    ("raw", "kinds", "value"),
    [
        ("3", {"integer"}, 3),
        ("3", {"number"}, 3),
        ("3.5", {"integer"}, "3.5"),
        (" 3.5 ", {"number"}, 3.5),
        ("False", {"boolean"}, False),
        ("None", {"null", "string"}, None),
        ("NaN", {"number"}, "NaN"),
        ('"a"', {"string", "null"}, '"a"'),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': 1}", {"object"}, "{'a': 1}"),
        ("[" * 5000, {"array"}, "[" * 5000),
        ("", {"integer"}, ""),
    ],
)
def test_values_without_quotes(raw, kinds, value):
    assert json.loads(as_json(raw, frozenset(kinds))) == value
