"""What requests ask of a reply's structure: a grammar that compiles, or a RequestError.

Sources: src/pagoda/core/structured.py, src/pagoda/text/grammar/, src/pagoda/engine/constraint.py.
"""

import json

import msgspec

from pagoda.base.errors import RequestError
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.constraint import completion_constraint

WORDS = (
    *(b'{"%s":' % kind for kind in (b"json", b"regex", b"choice", b"grammar", b"structural_tag")),
    *(
        b'"%s":' % key
        for key in (b"type", b"properties", b"required", b"items", b"anyOf", b"oneOf", b"allOf",
                    b"enum", b"const", b"pattern", b"format", b"$ref", b"$defs", b"minItems",
                    b"maxItems", b"minLength", b"maxLength", b"minimum", b"multipleOf",
                    b"additionalProperties", b"patternProperties", b"prefixItems", b"not", b"if",
                    b"structures", b"triggers", b"begin", b"end", b"schema", b"whitespace_pattern")
    ),
    b'"object"', b'"#/$defs/a"', b'"#"', b'"string"', b'"date-time"', b"root ::= ", b"start: ",
    b"| ", b"[a-z]+", b"(a|b)*", b"{0,99999}", b"{1000}", b"(?=a)", b"\\\\1", b"\\\\p{L}",
    b"\\\\u0000", b"(?i)", b"^", b"$", b'\\"a\\"', b"\\n", b"%json {}", b"%regex {",
    b"%import", b"%lark", b"@x", b"null", b"true", b"1e400", b"-1", b"9" * 20, b"0.1", b"\\ud800",
)  # fmt: skip


def fuzz_grammar(data: bytes) -> None:
    try:
        wanted = msgspec.convert(msgspec.json.decode(data), StructuredOutputsParams)
    except (msgspec.DecodeError, msgspec.ValidationError, RequestError, UnicodeDecodeError):
        return  # as `server/bodies/body.py` and `server/bodies/structure.py` refuse them
    except RecursionError:
        return
    try:
        grammar = completion_constraint(wanted).grammar
    except RequestError as error:
        assert str(error).strip() and len(str(error)) < 2000
        return
    assert grammar is not None
    if grammar.startswith('{"grammars"'):
        json.loads(grammar)
