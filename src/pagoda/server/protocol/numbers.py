"""Fields of requests from the table of the sampler's numbers."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, Field, create_model

from pagoda.config.sampling import NUMBERS, Number

SAMPLERS_DESCRIPTION = (
    "In the order in which they are applied; one that is not named is off. Names, or letters in "
    "one text."
)
BREAKERS_DESCRIPTION = "Texts across which DRY sees no repetition."

ModelT = TypeVar("ModelT", bound=BaseModel)
Definition = tuple[str, Any]
"""A field's name and what pydantic's says of it."""


def with_numbers(base: type[ModelT], define: Callable[[Number], Definition]) -> type[ModelT]:
    """A model with the fields of `base` and one for each number, None where it is not sent."""
    defined = (define(number) for number in NUMBERS)
    fields: dict[str, Any] = {
        name: (number.kind | None, field)
        for number, (name, field) in zip(NUMBERS, defined, strict=True)
    }
    return create_model(base.__name__, __base__=base, **fields)


def openai_number(number: Number) -> Definition:
    """Under our name or llama-server's; SamplingParams says what is out of range."""
    if number.native == number.name:
        lowest = None if number.most is None else number.low
        return number.name, Field(None, ge=lowest, le=number.most)
    return number.name, Field(
        None,
        validation_alias=AliasChoices(number.name, number.native),
        description=f"Also `{number.native}`, llama-server's name.",
    )


def native_number(number: Number) -> Definition:
    if number.floor is not None:
        return number.native, Field(None, description=number.floor)
    closed, above = (None, number.low) if number.open_low else (number.low, None)
    return number.native, Field(None, ge=closed, gt=above, le=number.high)
