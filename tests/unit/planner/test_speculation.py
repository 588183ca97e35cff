"""What guesses for a model, by what was asked for, and why."""

from dataclasses import replace

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.cli import serve
from pagoda.config import flags
from pagoda.config.engine import EngineConfig, ParallelConfig
from pagoda.config.parser import FlagParser
from pagoda.config.speculation import SpeculationConfig, checked, parse_speculative_config
from pagoda.planner.resolved import ResolvedSpeculation
from pagoda.planner.speculation import resolve_speculation, with_draft_head
from tests.unit.arch.test_qwen3_5 import QWEN_27B
from tests.unit.planner.test_resolve import smollm2

PLAIN, HEADED = smollm2(), spec_for(QWEN_27B, {}, ())
DRAFTED = replace(PLAIN, draft_model=smollm2(layers=1))


def resolved(spec, asked=None, device="cpu", ranks=1):
    """(What guesses, the reason given)."""
    config = EngineConfig(
        speculation=SpeculationConfig(checked(asked or {})),
        parallel=ParallelConfig(tensor_parallel_size=ranks),
    )
    reasons = []
    found = resolve_speculation(config, with_draft_head(spec, config), device, reasons)
    return found, "; ".join(reason.why for reason in reasons if reason.field == "speculation")


@pytest.mark.parametrize(
    ("spec", "asked", "device", "method", "why"),
    [
        (PLAIN, {}, "cpu", "suffix", "replies repeat"),
        (PLAIN, {}, "cuda", "none", "default on cuda"),
        (PLAIN, {"method": "none"}, "cpu", "none", ""),
        (PLAIN, {"method": "ngram"}, "cuda", "ngram", ""),
        (PLAIN, {"num_speculative_tokens": 0}, "cpu", "none", "no tokens"),
        (PLAIN, {"method": "mtp"}, "cpu", "suffix", "in place of mtp: the checkpoint has no draft"),
        (DRAFTED, {"model": "small"}, "cpu", "draft", "by small of 31.9M parameters"),
        (PLAIN, {"model": "small", "num_speculative_tokens": 0}, "cpu", "none", "no tokens"),
        (
            PLAIN,
            {"mode": "fast"},
            "cpu",
            "suffix",
            "--mode fast is for a draft head; the checkpoint",
        ),
        (
            PLAIN,
            {"mode": "fast"},
            "cuda",
            "none",
            "--mode fast is for a draft head; the checkpoint",
        ),
        (HEADED, {}, "cpu", "suffix", "replies repeat"),
        (HEADED, {"method": "mtp"}, "cpu", "mtp", ""),
        (HEADED, {"mode": "auto"}, "cuda", "mtp", "--mode auto, and the checkpoint has a draft"),
    ],
)
def test_what_guesses(spec, asked, device, method, why):
    found, said = resolved(spec, asked, device)
    assert found.method == method
    assert said.startswith(why) and bool(said) == bool(why)


def test_a_head_drafts_on_one_device():
    found, why = resolved(HEADED, {"method": "mtp"}, ranks=2)
    assert found.method == "suffix" and "one device only" in why


@pytest.mark.parametrize(
    ("asked", "length"),
    [({}, 3), ({"mode": "stable"}, 3), ({"mode": "fast"}, 4), ({"num_speculative_tokens": 2}, 2)],
)
def test_how_much_a_head_guesses(asked, length, monkeypatch):
    assert resolved(HEADED, {"method": "mtp", **asked})[0].most == length
    monkeypatch.setenv("PAGODA_SPEC_TOKENS", "1")
    expected = length if "num_speculative_tokens" in asked else 1
    assert resolved(HEADED, {"method": "mtp", **asked})[0].most == expected


def test_how_much_a_draft_model_guesses():
    assert resolved(DRAFTED, {"model": "small"})[0].most == 5
    assert resolved(DRAFTED, {"model": "small", "num_speculative_tokens": 9})[0].most == 9


def test_the_head_is_loaded_where_it_guesses_only():
    for asked, loaded in (({}, False), ({"method": "mtp"}, True), ({"method": "ngram"}, False)):
        config = EngineConfig(speculation=SpeculationConfig(asked))
        assert with_draft_head(HEADED, config).drafts is loaded


def test_counts_are_taken_as_they_are():
    asked = {"method": "ngram", "num_speculative_tokens": 40, "min_speculative_tokens": 2}
    found, _ = resolved(PLAIN, {**asked, "prompt_lookup_min": 3, "prompt_lookup_max": 5})
    assert found == ResolvedSpeculation("ngram", 40, 40, 2, 3, 5)


@pytest.mark.parametrize(
    "asked",
    [
        {"num_speculative_tokens": 2, "min_speculative_tokens": 3},
        {"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 5},
    ],
)
def test_counts_that_contradict_each_other_are_refused(asked):
    with pytest.raises(ConfigError, match="raise one or lower the other"):
        resolved(PLAIN, asked)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"method": "magic"}', "the method 'magic' is not known; it is one of auto, none,"),
        ('{"num_speculative_tokens": 100}', "num_speculative_tokens is 100; it takes a number"),
        ('{"num_speculative_tokens": "3"}', "takes a number from 0 to 64"),
        ('{"num_spec": 3}', "'num_spec' is not known; known are method, model, mode,"),
        ('{"mode": "turbo"}', "the mode 'turbo' is not known"),
    ],
)
def test_what_is_not_known_is_refused_by_name(text, error):
    with pytest.raises(ConfigError, match=error):
        parse_speculative_config(text)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--spec-type ngram-mod --draft-max 9", {"method": "suffix", "num_speculative_tokens": 9}),
        ("--spec-type draft-mtp,ngram-simple", {"method": "ngram"}),
        ("--spec-method qwen3_next_mtp --spec-tokens 2",
         {"method": "mtp", "num_speculative_tokens": 2}),
        ("--draft-min 3 --mode fast", {"min_speculative_tokens": 3, "mode": "fast"}),
        ("""--additional-config {"caovan_mode":"stable"}""", {"mode": "stable"}),
        ("""--additional-config {"other":1}""", {}),
        ("-md small.gguf --draft-max 4", {"model": "small.gguf", "num_speculative_tokens": 4}),
        ("--spec-draft-model a --spec-type draft-simple", {"model": "a", "method": "draft"}),
        ("--spec-type draft-eagle3 -md head.gguf", {"method": "eagle3", "model": "head.gguf"}),
        ("-hfd org/name:Q4_K_M", {"model": "hf:org/name:Q4_K_M"}),
        ("--speculative-model org/name --num-speculative-tokens 3",
         {"model": "org/name", "num_speculative_tokens": 3}),
        ("--speculative-model [ngram]", {"method": "ngram"}),
        ("""-sc {"method":"draft_model","model":"a"}""", {"method": "draft", "model": "a"}),
        ("""-sc {"method":"ngram","prompt_lookup_max":4,"disable_by_batch_size":8}""",
         {"method": "ngram", "prompt_lookup_max": 4}),
    ],
)  # fmt: skip
def test_lines_of_others_mean_the_same(line, said):
    parser = FlagParser()
    serve.add_arguments(parser)
    config = flags.engine_config(parser.parse_args(line.split()))
    assert config.speculation.speculative_config == said
