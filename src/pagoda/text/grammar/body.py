"""Answers of a given form: JSON, a regex, one of several texts, a grammar."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from pagoda.base.errors import RequestError
from pagoda.text.grammar.reply import Body
from pagoda.text.grammar.rules import either
from pagoda.text.grammar.schema import checked_schema, shortened

_PARAM = "structured_outputs"
_MAX_CHARACTERS = 1 << 18
_MAX_CHOICES = 4096
# Its converter takes about 10 us per character.
_MAX_GRAMMAR = 1 << 16
_LIMITS = LLParserLimits(verbose_errors=False)
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def json_body(schema: Any, options: Mapping[str, Any], param: str) -> Body:
    """A value that fits a schema. Raises RequestError where that cannot be enforced."""
    parsed = checked_schema(schema, param)
    return lambda rules: rules.json(parsed, options)


def regex_body(pattern: str) -> Body:
    if len(pattern) > _MAX_CHARACTERS:
        raise RequestError(f"The regex is longer than {_MAX_CHARACTERS} characters.", _PARAM)
    return lambda rules: rules.regex(pattern)


def choice_body(choices: Sequence[str]) -> Body:
    if len(choices) > _MAX_CHOICES or sum(map(len, choices)) > _MAX_CHARACTERS:
        raise RequestError(
            f"choice takes up to {_MAX_CHOICES} strings of {_MAX_CHARACTERS} characters in all.",
            _PARAM,
        )
    return lambda rules: rules.rule(either(*map(rules.literal, choices)))


def grammar_body(source: str) -> Body:
    """A grammar as GBNF or EBNF (`root ::= ...`), or Lark."""
    if len(source) > _MAX_GRAMMAR:
        raise RequestError(f"The grammar is longer than {_MAX_GRAMMAR} characters.", _PARAM)
    try:
        lark = any_to_lark(source)
    except Exception as error:  # the converter raises nothing more special
        raise RequestError(f"The grammar cannot be read: {error}.", _PARAM) from error
    return lambda rules: rules.lark(lark)


@lru_cache(maxsize=256)
def check(grammar: str) -> None:
    """RequestError for a grammar that is wrong, as far as can be told without a vocabulary.

    Takes milliseconds; for large schemas a fraction of a second.
    """
    message = LLMatcher.validate_grammar(grammar, limits=_LIMITS)
    if message:
        raise RequestError(f"The structure asked for is wrong: {shortened(message)}", _PARAM)
