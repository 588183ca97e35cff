"""Texts that a model is asked to write once more with a change, made here by a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

_NOUNS = (
    "order", "invoice", "parcel", "ticket", "ledger", "budget", "stock", "route", "batch", "record",
    "sample", "report", "meter", "sensor", "window", "bridge", "garden", "engine", "mirror",
)  # fmt: skip
_VERBS = ("count", "merge", "check", "load", "store", "print", "split", "clean", "rank", "sort")
_DEEDS = ("painted", "measured", "repaired", "moved", "sold")
_PEOPLE = ("a baker", "two sisters", "the mayor", "a sailor", "nobody known")


@dataclass(frozen=True)
class Work:
    name: str
    prompt: str
    temperature: float
    what: str


def works() -> list[Work]:
    """Three edits, each with the beginning of what is to come, since a small model copies well and
    follows orders badly; and a story of its own."""
    before, after = list(_code("total")), list(_code("amount"))
    rows, changed = list(_rows(None)), list(_rows(7))
    text = list(_sentences())
    return [
        Work(
            "rename",
            _joined("# orders.py", before, "\n# orders.py, total renamed to amount", after[:14]),
            0.0,
            "a name in a file of 300 lines",
        ),
        Work(
            "json",
            _joined("Products:", rows, "\nProducts, the price of 107 being 99:", changed[:4]),
            0.0,
            "a field of a JSON list of 60",
        ),
        Work(
            "quote",
            _joined("The letters:", text, "\nThe letters once more, word for word:", text[:1]),
            0.0,
            "a passage of 70 sentences",
        ),
        Work(
            "story",
            "The lighthouse keeper had not spoken to anyone since the storm, and when the boat",
            1.0,
            "free text, temperature 1",
        ),
    ]


def _joined(title: str, text: list[str], again: str, beginning: list[str]) -> str:
    return "\n".join((title, *text, again, *beginning)) + "\n"


def _code(name: str) -> Iterator[str]:
    chance = random.Random(1)
    for _ in range(43):
        verb, item, field = chance.choice(_VERBS), chance.choice(_NOUNS), chance.choice(_NOUNS)
        yield f"def {verb}_{item}s({item}s, {field}):"
        yield f"    {name} = 0"
        yield f"    for {item} in {item}s:"
        yield f"        if {item}.{field} > {field}:"
        yield f"            {name} += {item}.{field}"
        yield f"    return {name}"
        yield ""


def _rows(changed: int | None) -> Iterator[str]:
    chance = random.Random(2)
    yield "["
    for row in range(60):
        name, kind = chance.choice(_NOUNS), chance.choice(_NOUNS)
        price, there = chance.randrange(5, 900), chance.choice(("true", "false"))
        price = 99 if row == changed else price
        yield (
            f'  {{"id": {100 + row}, "name": "{name} {kind}", "price": {price}, '
            f'"in_stock": {there}}},'
        )


def _sentences() -> Iterator[str]:
    chance = random.Random(3)
    for _ in range(70):
        thing, deed, person = (chance.choice(words) for words in (_NOUNS, _DEEDS, _PEOPLE))
        yield (
            f"The {thing} of the old town was {deed} in {chance.randrange(1700, 1990)} by "
            f"{person}, who wrote about the {chance.choice(_NOUNS)} in a letter."
        )
