"""A config field with its documentation, its range and its command-line form."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.base.words import say


def option(
    default: Any,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] | None = None,
    parse: Callable[[str], Any] | None = None,
    factory: Callable[[], Any] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Any:
    """A dataclass field. The flag is the field's name with dashes; `aliases` are further flags.

    `parse` reads the flag's text (sizes, JSON); by default the annotation's type does. Numbers
    lie in `bounds`, both ends included.
    """
    metadata = {
        "doc": doc, "aliases": aliases, "choices": choices, "parse": parse, "bounds": bounds,
    }  # fmt: skip
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


class Options:
    """Base of the config dataclasses: checks choices and bounds however one is built."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            if "doc" in field.metadata:
                _check(field, getattr(self, field.name))


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    """Raises ConfigError that names the flag and what it takes."""
    choices, bounds = field.metadata["choices"], field.metadata["bounds"]
    if choices is not None and value not in choices:
        raise ConfigError(
            say(
                "{flag} is {value!r}; it takes one of: {choices}.",
                flag=flag_name(field.name),
                value=value,
                choices=", ".join(choices),
            )
        )
    if bounds is None or not isinstance(value, int | float):
        return
    low, high = bounds
    if not low <= value <= high:
        raise ConfigError(
            say(
                "{flag} is {value}; it must be at least {low}."
                if math.isinf(high)
                else "{flag} is {value}; it must be at least {low} and at most {high}.",
                flag=flag_name(field.name),
                value=value,
                low=low,
                high=high,
            )
        )
