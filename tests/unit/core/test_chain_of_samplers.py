"""Which requests have samplers in an order of their own."""

import pytest

from pagoda.base.errors import RequestError
from pagoda.config.sampling import SAMPLERS
from pagoda.core.sampling import SamplingParams


@pytest.mark.parametrize(
    ("numbers", "chain"),
    [
        ({}, None),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.9, "presence_penalty": 1.0}, None),
        ({"temperature": 0.7, "top_p": 0.9, "samplers": ["temperature", "top_k", "top_p"]}, None),
        ({"temperature": 0.7, "samplers": list(SAMPLERS)}, None),
        ({"temperature": 0.7, "top_p": 0.9, "samplers": list(SAMPLERS)}, ["top_p", "temperature"]),
        ({"temperature": 0.7, "top_p": 0.9, "samplers": "tp"}, None),
        ({"temperature": 0.7, "top_p": 0.9, "samplers": "pt"}, ["top_p", "temperature"]),
        ({"top_k": 5, "typical_p": 0.9, "temperature": 0.5}, ["top_k", "typ_p", "temperature"]),
        ({"xtc_probability": 0.5, "min_p": 0.1}, ["min_p", "xtc"]),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.6}, None),
        ({"xtc_probability": 0.5, "samplers": ["min_p"]}, None),
        ({"dry_multiplier": 0.5, "frequency_penalty": 0.5}, ["penalties", "dry"]),
        ({"dry_multiplier": 0.5, "dry_penalty_last_n": 0}, None),
        ({"dynatemp_range": 0.5}, ["temperature"]),
        ({"min_keep": 2, "top_p": 0.5}, ["top_p"]),
        ({"mirostat": 2, "top_k": 5, "presence_penalty": 1.0, "temperature": 0.5},
         ["penalties", "temperature"]),
    ],
)  # fmt: skip
def test_chain(numbers, chain) -> None:
    assert SamplingParams(**numbers).chain == chain


def test_a_temperature_that_varies_around_0_is_not_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=0, dynatemp_range=0.5).greedy


@pytest.mark.parametrize("samplers", [["luck"], "kz", [5]])
def test_names_that_are_none(samplers) -> None:
    with pytest.raises(RequestError, match="samplers"):
        SamplingParams(samplers=samplers)
