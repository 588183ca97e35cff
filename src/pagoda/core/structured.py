"""What a caller asks of the structure of an output."""

from typing import Any

import msgspec

from pagoda.base.errors import RequestError

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What an output must look like: one kind, and how JSON may be laid out. Names are vLLM's.

    Raises RequestError unless exactly one kind is given.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema."""
    regex: str | None = None
    """What the whole output matches; no look-around, no back-references."""
    choice: list[str] | None = None
    """The output is one of these."""
    grammar: str | None = None
    """A context-free grammar as GBNF or EBNF (`root ::= ...`) or Lark (`start: ...`)."""
    json_object: bool | None = None
    """True: any JSON object."""
    structural_tag: str | dict[str, Any] | None = None
    """Parts of the output that follow schemas, between their tags."""
    whitespace_pattern: str | None = None
    """A regex of what may stand between the tokens of JSON."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    """Taken for vLLM's sake: objects have only the properties that their schema names anyway,
    unless it gives `additionalProperties`."""

    def __post_init__(self) -> None:
        if self.json_object is False:
            self.json_object = None
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs needs exactly one of {', '.join(KINDS)}; "
                f"{' and '.join(given) if given else 'none'} is given.",
                "structured_outputs",
            )
        if self.choice is not None and not all(isinstance(c, str) and c for c in self.choice):
            raise RequestError("choice takes non-empty strings.", "structured_outputs.choice")
        if self.choice == []:
            raise RequestError("choice needs at least one string.", "structured_outputs.choice")

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name) is not None)
