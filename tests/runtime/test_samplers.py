"""Samplers of llama.cpp, on the distributions that its own tests list (tests/test-sampling.cpp)."""

import math

import numpy as np
import pytest
import torch

from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.runtime.sampling.candidates import CUTS, Candidates, Surprise, mirostat
from pagoda.runtime.sampling.chain import Chain
from pagoda.runtime.sampling.dry import Breakers, apply_dry, repeats

TENTHS = (0.1, 0.2, 0.3, 0.4)
FALLING = (0.4, 0.3, 0.2, 0.1)


def left_of(shares, sampler: str, **numbers) -> list[float]:
    """What one sampler leaves of tokens with these probabilities, renormalized."""
    left = Candidates(torch.tensor(shares).log())
    CUTS[sampler](left, SamplingParams(**numbers))
    return left.row().softmax(dim=0).tolist()


@pytest.mark.parametrize(
    ("sampler", "numbers", "shares", "expected"),
    [
        ("temperature", {"temperature": 1.0}, TENTHS, TENTHS),
        ("temperature", {"temperature": 0.0}, TENTHS, (0, 0, 0, 1)),
        ("temperature", {"temperature": 1.0, "dynatemp_exponent": 1.0}, TENTHS, TENTHS),
        ("top_k", {"top_k": 1}, TENTHS, (0, 0, 0, 1)),
        ("top_k", {"top_k": 3}, TENTHS, (0, 0.22222, 0.33333, 0.44444)),
        ("top_k", {"top_k": 4}, TENTHS, TENTHS),
        ("top_p", {"top_p": 1e-9}, TENTHS, (0, 0, 0, 1)),
        ("top_p", {"top_p": 0.7}, TENTHS, (0, 0, 0.428571, 0.571429)),
        ("top_p", {"top_p": 0.8}, TENTHS, (0, 0.22222, 0.33333, 0.44444)),
        ("top_p", {"top_p": 1.0}, TENTHS, TENTHS),
        ("min_p", {"min_p": 0.24}, TENTHS, TENTHS),
        ("min_p", {"min_p": 0.26}, TENTHS, (0, 2 / 9, 3 / 9, 4 / 9)),
        ("min_p", {"min_p": 0.49}, TENTHS, (0, 2 / 9, 3 / 9, 4 / 9)),
        ("min_p", {"min_p": 0.51}, TENTHS, (0, 0, 3 / 7, 4 / 7)),
        ("min_p", {"min_p": 0.74}, TENTHS, (0, 0, 3 / 7, 4 / 7)),
        ("min_p", {"min_p": 0.76}, TENTHS, (0, 0, 0, 1)),
        ("min_p", {"min_p": 1.0}, TENTHS, (0, 0, 0, 1)),
        ("xtc", {"xtc_threshold": 0.09}, FALLING, (0, 0, 0, 1)),
        ("xtc", {"xtc_threshold": 0.19}, FALLING, (0, 0, 2 / 3, 1 / 3)),
        ("xtc", {"xtc_threshold": 0.29}, FALLING, (0, 0.5, 2 / 6, 1 / 6)),
        ("xtc", {"xtc_threshold": 0.39}, FALLING, FALLING),
        ("typ_p", {"typical_p": 0.5}, (0.97, 0.01, 0.01, 0.01), (1, 0, 0, 0)),
        ("typ_p", {"typical_p": 0.5}, (0.4, 0.2, 0.2, 0.2), (0, 1 / 3, 1 / 3, 1 / 3)),
        ("top_n_sigma", {"top_n_sigma": 1.0}, TENTHS, (0, 0, 0.428571, 0.571429)),
        ("top_n_sigma", {"top_n_sigma": 3.0}, TENTHS, TENTHS),
    ],
)  # fmt: skip
def test_what_a_sampler_leaves(sampler, numbers, shares, expected) -> None:
    assert left_of(shares, sampler, **numbers) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "tokens", "breakers", "numbers", "expected"),
    [
        (4, [0, 1], [], (1.0, 1.1, 2, 4), [0.25] * 4),
        (4, [0, 1, 2, 0, 1], [], (1.0, 1.1, 2, 5), [0.296923, 0.296923, 0.109232, 0.296923]),
        (5, [0, 1, 3, 4, 0, 1], [[3]], (1.0, 1.1, 2, 6), [0.2] * 5),
        (5, [0, 1, 2, 0, 1], [], (2.0, 1.1, 2, 5), [0.241818, 0.241818, 0.032727] + [0.241818] * 2),
        (5, [0, 1, 2, 3, 4, 0, 1], [], (1.0, 1.1, 4, 7), [0.2] * 5),
    ],
)
def test_dry(count, tokens, breakers, numbers, expected) -> None:
    names = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
    sampling = SamplingParams(**dict(zip(names, numbers, strict=True)))
    logits = torch.zeros(1, count)
    apply_dry(logits, np.array(tokens, np.int32), sampling, Breakers(breakers))
    assert logits.softmax(dim=1)[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_repeats_are_counted_as_by_comparing_all() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 9, 60):
        for kinds in (1, 2, 3):
            tokens = random.integers(kinds, size=size).tolist()
            expected = [0]
            for place in range(1, size):
                pairs = zip(tokens, tokens[place:], strict=False)
                equal = [one == other for one, other in pairs]
                expected.append(min(4, equal.index(False) if False in equal else len(equal)))
            assert repeats(tokens, 4) == expected


def test_a_breaker_of_several_tokens_ends_what_is_compared() -> None:
    tokens = [1, 2, 7, 8, 3, 1, 2, 7, 8]  # 7 8 is a breaker: nothing behind it yet
    assert Breakers([[7, 8]]).distance(tokens[::-1]) == 0
    assert Breakers([[7, 8]]).distance([5, 6, 8, 7, 1]) == 2
    assert Breakers([[7, 9]]).distance(tokens[::-1]) == len(tokens)
    assert Breakers([[7, 8]]).is_one(7) is False and Breakers([[7, 8], [7]]).is_one(7)


def test_dynamic_temperature_follows_its_formula() -> None:
    shares = torch.tensor((0.5, 0.3, 0.15, 0.05), dtype=torch.float64)
    normalized = float(-(shares * shares.log()).sum()) / math.log(4)
    degree = 0.3 + (1.3 - 0.3) * normalized**2
    expected = (shares.log() / degree).softmax(dim=0).tolist()
    numbers = {"temperature": 0.8, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0}
    assert left_of(shares.float().tolist(), "temperature", **numbers) == pytest.approx(expected)


def test_min_keep_holds_where_less_would_be_left() -> None:
    for sampler, numbers in (
        ("top_p", {"top_p": 0.1}), ("min_p", {"min_p": 1.0}), ("typ_p", {"typical_p": 0.05}),
    ):  # fmt: skip
        kept = left_of(TENTHS, sampler, **numbers, min_keep=3)
        assert sum(share > 0 for share in kept) == 3
    assert left_of(FALLING, "xtc", xtc_threshold=0.09, min_keep=2) == pytest.approx(FALLING)


def test_mirostat_2_lets_pass_what_surprises_little_enough() -> None:
    left = Candidates(torch.tensor((0.05, 0.5, 0.25, 0.2)).log())
    mirostat(left, 2, Surprise(2.1, 4))
    assert left.ids.tolist() == [1, 2]
    mirostat(left, 2, Surprise(-1.0, 4))
    assert left.ids.tolist() == [1]


def test_mirostat_1_counts_by_zipf() -> None:
    """Of shares that follow Zipf's law exactly, what the paper's formula says."""
    vocab, exponent, surprise = 500, 1.5, 6.0
    logits = -exponent * torch.arange(1, vocab + 1).float().log()
    left = Candidates(logits)
    mirostat(left, 1, Surprise(surprise, vocab))
    count = (0.5 * 2**surprise / (1 - vocab**-0.5)) ** (1 / 1.5)
    assert len(left) == int(count) > 1


def chain(**numbers) -> Chain:
    request = AddRequest(req_id="a", prompt_token_ids=[1], sampling=SamplingParams(**numbers))
    return Chain(request, seed=7)


def penalize(row: torch.Tensor) -> None:
    row[0, :2] -= 5


def apply(chain: Chain, logits: torch.Tensor, position: int = 3) -> torch.Tensor:
    def draw(one: torch.Tensor) -> int:
        generator = torch.Generator().manual_seed(position)
        return int(torch.multinomial(one.softmax(dim=1), 1, generator=generator))

    row = logits.clone()
    chain.apply(row, position, np.array([1, 2, 3], np.int32), penalize, draw)
    return row


def test_the_order_is_the_requests() -> None:
    """Half of the mass is three tokens at temperature 3, one where the temperature comes last."""
    logits = torch.tensor((3.0, 2.0, 1.0, 0.0))
    hot = {"temperature": 3.0, "top_p": 0.6}
    last = apply(chain(**hot, samplers=["top_p", "temperature"]), logits)
    first = apply(chain(**hot, samplers=["temperature", "top_p"], min_keep=2), logits)
    assert last.isfinite().tolist() == [True, False, False, False]
    assert first.isfinite().tolist() == [True, True, False, False]
    cut = {"presence_penalty": 1.0, "top_k": 2}
    late = apply(chain(**cut, samplers=["top_k", "penalties"]), logits)
    early = apply(chain(**cut, samplers=["penalties", "top_k"], min_keep=2), logits)
    assert late.isfinite().tolist() == [True, True, False, False]
    assert early.isfinite().tolist() == [False, False, True, True]


def test_xtc_happens_as_often_as_asked_and_again_at_the_same_place() -> None:
    logits = torch.tensor(FALLING).log()
    often = chain(xtc_probability=0.25, xtc_threshold=0.1)
    happened = [bool(apply(often, logits, place)[0].isinf()) for place in range(2000)]
    assert 0.2 < sum(happened) / 2000 < 0.3
    assert happened[:50] == [bool(apply(often, logits, place)[0].isinf()) for place in range(50)]


def test_mirostat_keeps_the_surprise_near_its_target() -> None:
    generator = torch.Generator().manual_seed(0)
    for version in (1, 2):
        one = chain(mirostat=version, mirostat_tau=3.0)
        rows = torch.randn(400, 500, generator=generator) * 2
        for place in range(400):
            apply(one, rows[place], place)
        bits = [one._surprise[place + 1] - one._surprise[place] for place in range(200, 399)]
        assert abs(float(np.mean(bits))) < 0.05  # mu has come to rest
        again = apply(one, rows[123], 123)
        assert torch.equal(again, apply(one, rows[123], 123))


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_a_row_without_a_token_stays_as_it_is(bad: float) -> None:
    row = apply(chain(xtc_probability=1.0), torch.full((4,), bad))
    assert not row.isfinite().any()
