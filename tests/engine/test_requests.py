import math

import pytest

from pagoda.base.errors import ContextLengthError, RequestError
from pagoda.core.sampling import SamplingParams
from pagoda.engine.requests import RequestLimits, checked_prediction, fan_out, make_request


class ByteTokenizer:
    """One token per byte; 0 ends a turn."""

    eos_token_ids = (0,)

    def encode(self, text, *, add_special_tokens=True, parse_special=True):
        return list(text.encode())


LIMITS = RequestLimits(max_model_len=32, vocab_size=256, max_logprobs=5)


def make(ids, limits=LIMITS, **sampling):
    return make_request("r", ids, SamplingParams(**sampling), ByteTokenizer(), limits)


def test_max_tokens_none_fills_the_context():
    assert make([1] * 10, max_tokens=None).sampling.max_tokens == 22


def test_only_the_offline_engine_clamps():
    with pytest.raises(ContextLengthError, match="maximum context length is 32 tokens.*33"):
        make([1] * 10, max_tokens=23)
    clamping = RequestLimits(max_model_len=32, vocab_size=256, clamp_max_tokens=True)
    assert make([1] * 10, clamping, max_tokens=23).sampling.max_tokens == 22


def test_a_prediction_holds_what_a_reply_can():
    assert checked_prediction((), LIMITS) == []
    assert checked_prediction([255] * 32, LIMITS) == [255] * 32
    for ids in ([1] * 33, [1, 256], [-1]):
        with pytest.raises(RequestError, match="prediction") as caught:
            checked_prediction(ids, LIMITS)
        assert caught.value.param == "prediction"


@pytest.mark.parametrize("length", [32, 33])
def test_a_prompt_without_room_for_one_token(length):
    with pytest.raises(ContextLengthError, match=f"contains {length} input tokens"):
        make([1] * length, max_tokens=None)


def test_scoring_alone_may_fill_the_context():
    assert make([1] * 32, max_tokens=0).sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("ids", "sampling", "param"),
    [
        ([], {}, "prompt"),
        ([256], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1], {"stop_token_ids": [300]}, "stop_token_ids"),
        ([1], {"logit_bias": {256: 1.0}}, "logit_bias"),
        ([1], {"allowed_token_ids": [1, 256]}, "allowed_token_ids"),
        ([1], {"logprobs": 6}, "logprobs"),
        ([1], {"logprobs": -1}, "logprobs"),
        ([1], {"prompt_logprobs": 6}, "prompt_logprobs"),
    ],
)
def test_what_the_model_cannot_do_names_the_field(ids, sampling, param):
    with pytest.raises(RequestError) as caught:
        make(ids, **sampling)
    assert caught.value.param == param


def test_truncation_keeps_the_end():
    assert make(list(range(20)), truncate_prompt_tokens=3).prompt_token_ids == [17, 18, 19]
    cut = make(list(range(40)), truncate_prompt_tokens=-1, max_tokens=4)
    assert cut.prompt_token_ids == list(range(12, 40))


def test_eos_and_bad_words():
    made = make([1], bad_words=["ab"])
    assert made.eos_token_ids == [0]
    assert made.bad_word_ids == [[97, 98], [32, 97, 98]]


def test_fan_out_differs_in_id_and_seed_only():
    parts = fan_out(make([1, 2], n=3, seed=7), 3)
    assert [part.sampling.seed for part in parts] == [7, 8, 9]
    assert len({part.req_id for part in parts}) == 3
    assert {part.sampling.n for part in parts} == {1}
    assert all(part.prompt_token_ids == [1, 2] for part in parts)
    assert [part.sampling.seed for part in fan_out(make([1], n=2), 2)] == [None, None]
    last = fan_out(make([1], n=2, seed=2**63 - 1), 2)
    assert [part.sampling.seed for part in last] == [2**63 - 1, -(2**63)]


def test_the_caller_keeps_his_parameters():
    sampling = SamplingParams(max_tokens=None)
    make_request("r", [1], sampling, ByteTokenizer(), LIMITS)
    assert sampling.max_tokens is None and math.isclose(sampling.temperature, 1.0)
