"""What is wrong with a body, in plain words: the field, what it takes and what it was given."""

from typing import Any

from pydantic_core import ErrorDetails

_MAX_GIVEN = 40
_MAX_KINDS = 3
# What a field takes, by the type of pydantic's error; braces name what its context has.
_TAKES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "union_tag_invalid": "an object whose {discriminator} is one of {expected_tags}",
    "union_tag_not_found": "an object with {discriminator}",
}
# Of what has the right type, but another size: it need not be shown.
_SIZES = {
    "too_short": "must have at least {min_length} entries, not {actual_length}",
    "too_long": "must have at most {max_length} entries",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "missing": "is missing",
    "extra_forbidden": "is not known here",
}


def fault_words(path: str, details: list[ErrorDetails]) -> str:
    """A sentence without its full stop. `details` are of one field, which a union may have given
    several; `path` is empty for the body itself."""
    name = path or "the body"
    takes = dict.fromkeys(text for one in details if (text := _filled(_TAKES, one)))
    if takes:
        return f"{name} must be {_joined(list(takes))}, not {_given(details[0]['input'])}"
    first = details[0]
    if first["type"].endswith("too_short") and first["ctx"]["min_length"] == 1:
        return f"{name} must not be empty"
    if size := _filled(_SIZES, first):
        return f"{name} {size}"
    return f"{name}: {first['msg'].removeprefix('Value error, ').rstrip('.')}"


def _filled(texts: dict[str, str], detail: ErrorDetails) -> str:
    return texts.get(detail["type"], "").format(**detail.get("ctx", {}))


def _joined(kinds: list[str]) -> str:
    return " or ".join(kinds[:_MAX_KINDS])


def _given(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and len(value) > _MAX_GIVEN:
        return f"{value[:_MAX_GIVEN]!r}... ({len(value):,} characters)"
    text = repr(value)
    return text if len(text) <= 2 * _MAX_GIVEN else f"{text[:_MAX_GIVEN]}..."
