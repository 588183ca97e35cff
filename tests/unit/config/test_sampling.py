"""The table of the sampler's numbers, and how far each of them reaches."""

import re
from pathlib import Path

import msgspec
import pytest

import pagoda
from pagoda.base.errors import RequestError
from pagoda.config.sampling import NUMBERS, SAMPLERS, Number
from pagoda.core.sampling import SamplingParams

SOURCE = Path(pagoda.__file__).parent
FIELDS = {field.name: field for field in msgspec.structs.fields(SamplingParams)}
# Of these, each number needs the table, SamplingParams and the places that apply it, to all rows at
# once and in a chain; some are also a dialect's reply to a request, or a default.
FLOORS = ("config", "weights", "core", "engine", "runtime", "server", "cli")
MOST_FILES = 7
ALSO_OTHERWISE = {"temperature", "top_k"}
"""Words of physics and of experts, too."""

each = pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)


@each
def test_sampling_params_have_what_the_table_says(number: Number) -> None:
    field = FIELDS[number.name]
    assert (field.type, field.default) == (number.kind, number.default)
    assert number.sampler in {*SAMPLERS, ""}


@each
def test_ends_of_a_range(number: Number) -> None:
    inside = {number.low, number.high} - ({number.low} if number.open_low else set())
    for value in inside:
        assert getattr(SamplingParams(**{number.name: value}), number.name) == value
    step = 1 if number.kind is int else abs(number.high) * 1e-9 + 1e-9
    for value in (number.low - step, float("nan"), True, "1", None):
        with pytest.raises(RequestError, match=rf"{number.name} must be .*, got"):
            SamplingParams(**{number.name: value})


@each
def test_a_number_is_named_in_few_files(number: Number) -> None:
    if number.name in ALSO_OTHERWISE:
        return
    words = re.compile(rf"\b({number.name}|{number.native})\b")
    files = [
        str(path.relative_to(SOURCE))
        for floor in FLOORS
        for path in sorted((SOURCE / floor).rglob("*.py"))
        if words.search(path.read_text())
    ]
    assert len(files) <= MOST_FILES, files
