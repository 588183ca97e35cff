import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.speculation import SpeculationConfig


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "draft"}, '"draft" needs a model that drafts'),
        (
            {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2},
            "prompt_lookup_min 5 and prompt_lookup_max 2; raise the second",
        ),
        (
            {"min_speculative_tokens": 9, "num_speculative_tokens": 8},
            "min_speculative_tokens 9 and num_speculative_tokens 8",
        ),
    ],
)
def test_what_no_model_could_make_true(given, said):
    with pytest.raises(ConfigError, match=said):
        SpeculationConfig(given).check()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "draft", "model": "SMALL"},
        {"method": "draft", "num_speculative_tokens": 0},
        {"min_speculative_tokens": 9},
        {"prompt_lookup_min": 3, "prompt_lookup_max": 3},
    ],
)
def test_what_is_for_the_model_to_say(given):
    SpeculationConfig(given).check()
