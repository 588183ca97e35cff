"""Sampling against transformers' logits processors, numpy's and the published definitions."""

import math

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pagoda.kernels.ref.draw import (
    DrawParams,
    Limits,
    draw,
    draw_kept,
    noise_width,
    shares,
    top_tokens,
)
from pagoda.kernels.ref.noise import exponential, splitmix
from pagoda.kernels.ref.sampling import first_max
from pagoda.runtime.sampling.logprobs import token_logprobs
from pagoda.runtime.sampling.params import PARAMS, Rules, request_seed
from pagoda.runtime.sampling.penalties import TokenCounts, apply_penalties
from pagoda.runtime.sampling.rules import apply_rules

DRAWS = 6000


def noise_of(count, vocab, seed=1):
    seeds = np.full(count, seed, np.uint64)
    return torch.from_numpy(exponential(seeds, np.arange(count), noise_width(vocab)))


def assert_drawn_from(found, expected):
    """Frequencies of DRAWS draws: 5 standard deviations, seeds fixed; nothing forbidden."""
    deviation = (expected * (1 - expected) / DRAWS).sqrt()
    assert ((found - expected).abs() <= 5 * deviation + 1.5 / DRAWS).all()
    assert not found[expected == 0].any()


def spread(logits, temperature, limits=None, **settings):
    """Frequency of each token over DRAWS positions for one row of logits."""
    rows = logits.expand(DRAWS, -1).contiguous()
    noise = noise_of(DRAWS, logits.shape[-1])
    top = rows.amax(-1)
    temperatures = torch.full((DRAWS,), temperature)
    if limits is None:
        tokens = draw(rows, top, temperatures, noise)
    else:
        tokens = draw_kept(rows, top, temperatures, repeat(*limits), noise, **settings)
    return torch.bincount(tokens, minlength=logits.shape[-1]).double() / DRAWS


def repeat(top_k, top_p, min_p, count=DRAWS):
    return Limits(
        torch.full((count,), top_k),
        torch.full((count,), top_p, dtype=torch.float64),
        torch.full((count,), min_p),
    )


def reference(logits, temperature, top_k, top_p, min_p):
    """transformers' processors in the order of vLLM's sampler."""
    scores = logits[None] / temperature
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores[0].double().softmax(-1)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("vocab", [5, 128, 300, 1024])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_draw_follows_softmax(vocab, temperature, generator):
    logits = 3 * torch.randn(vocab, generator=generator)
    expected = (logits / temperature).double().softmax(-1)
    assert_drawn_from(spread(logits, temperature), expected)


@pytest.mark.parametrize("candidates", [16, 10_000])
@pytest.mark.parametrize(
    "limits",
    [
        (1, 1.0, 0.0),
        (7, 1.0, 0.0),
        (60, 1.0, 0.0),
        (0, 0.02, 0.0),
        (0, 0.6, 0.0),
        (0, 0.97, 0.0),
        (0, 1.0, 0.3),
        (0, 1.0, 0.004),
        (10, 0.7, 0.05),
        (50, 0.9, 0.01),
    ],
)
def test_limits_keep_what_transformers_keeps(limits, candidates, generator):
    """With 16 candidates the wider ones take the way through the full sort."""
    for temperature in (0.6, 1.0, 1.7):
        logits = 2.5 * torch.randn(300, generator=generator)
        expected = reference(logits, temperature, *limits)
        found = spread(logits, temperature, limits, candidates=candidates)
        assert_drawn_from(found, expected)


def test_shares_are_what_a_draw_follows(generator):
    """Row by row, whatever the others' limits are; a row that is not drawn has one token."""
    limits = [(0, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.3), (50, 0.9, 0.01)]
    logits = 2.5 * torch.randn(len(limits) + 1, 300, generator=generator)
    top_k, top_p, min_p = zip(*limits, (0, 1.0, 0.0), strict=True)
    temperatures = [0.6, 1.0, 1.7, 1.0, 0.8, 0.0]
    params = DrawParams(
        np.array(temperatures, np.float32), np.array(top_k, np.int32), np.array(top_p),
        np.array(min_p, np.float32), np.zeros(6, np.uint64), np.zeros(6, np.int64),
    )  # fmt: skip
    found = shares(logits, logits.amax(-1), torch.arange(6), params)
    for row, kept in enumerate(limits):
        expected = reference(logits[row], temperatures[row], *kept)
        torch.testing.assert_close(found[row].double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.nonzero(found[5]).tolist() == [[5]] and found[5, 5] == 1


@pytest.mark.parametrize("candidates", [4, 10_000])
def test_ties(candidates):
    """Top-k keeps all equals of the k-th, as transformers does; top-p the lowest ids."""
    logits = torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 2.0])
    found = spread(logits, 1.0, (3, 1.0, 0.0), candidates=candidates)
    assert_drawn_from(found, reference(logits, 1.0, 3, 1.0, 0.0))
    even = torch.zeros(9)
    found = spread(even, 1.0, (0, 0.4, 0.0), candidates=candidates)
    assert torch.nonzero(found)[:, 0].tolist() == [0, 1, 2, 3]
    found = spread(logits, 1.0, (3, 0.5, 0.0), candidates=candidates)
    # 2 e^2 + 5 e: half of it is reached by the two most likely.
    assert torch.nonzero(found)[:, 0].tolist() == [1, 8]


def test_ways_through_agree_per_row(generator):
    """The same noise picks the same token with few candidates and with the full sort."""
    logits = 2 * torch.randn(200, 1000, generator=generator)
    logits[::2] = logits[::2].bfloat16().float()  # many ties
    noise = noise_of(200, 1000)
    limits = Limits(
        torch.randint(0, 80, (200,), generator=generator),
        0.2 + 0.8 * torch.rand(200, generator=generator, dtype=torch.float64),
        0.02 * torch.rand(200, generator=generator),
    )
    arguments = (logits, logits.amax(-1), torch.ones(200), limits, noise)
    few, all_of_them = (draw_kept(*arguments, candidates=n) for n in (40, 5000))
    assert torch.equal(few, all_of_them)


def test_rows_do_not_depend_on_their_batch(generator):
    logits = 2 * torch.randn(33, 40_000, generator=generator)
    noise = noise_of(33, 40_000)
    top, ones = logits.amax(-1), torch.ones(33)
    plain = draw(logits, top, ones, noise)
    limited = draw_kept(logits, top, ones, repeat(0, 0.9, 0.0, 33), noise)
    for i in range(33):
        part = slice(i, i + 1)
        one = (logits[part], top[part], ones[part])
        assert draw(*one, noise[part]) == plain[part]
        assert draw_kept(*one, repeat(0, 0.9, 0.0, 1), noise[part]) == limited[part]


def test_extreme_noise_picks_a_kept_token():
    """Whoever has no weight never wins, not even against the slowest or with the fastest."""
    logits = torch.full((2, 300), -torch.inf)
    logits[:, 7], logits[:, 130] = 1.0, 1.0
    noise = torch.full((2, noise_width(300)), 1e-300, dtype=torch.float64)
    noise[0, [1, 3 + 2]] = noise[1, [0, 3 + 7]] = 40.0
    top, ones = logits.amax(-1), torch.ones(2)
    assert draw(logits, top, ones, noise).tolist() == [7, 130]
    assert draw_kept(logits, top, ones, repeat(0, 0.99, 0.0, 2), noise).tolist() == [7, 130]


def test_draws_hardly_feel_the_last_bits(generator):
    """What batching changes in logits (1e-5) changes next to no draw, flat as they may be."""
    logits = torch.randn(1, 20_000, generator=generator).expand(2000, -1)
    noise = noise_of(2000, 20_000)
    shaken = logits + 1e-5 * torch.randn(logits.shape, generator=generator)
    ones = torch.ones(2000)
    same = draw(logits, logits.amax(-1), ones, noise) == draw(shaken, shaken.amax(-1), ones, noise)
    assert (~same).sum() <= 1


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_seeded_sampling_is_distributed_as_softmax(seed):
    """Chi-square over successive positions of one seed; fixed seeds, so no chance of failure."""
    logits = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 0.5, -2.0, 1.5])
    count = 20_000
    noise = noise_of(count, 8, seed)
    rows = logits.expand(count, -1).contiguous()
    tokens = draw(rows, rows.amax(-1), torch.ones(count), noise)
    expected = logits.double().softmax(-1) * count
    observed = torch.bincount(tokens, minlength=8)
    # 7 degrees of freedom: above 24.3 with probability 0.001.
    assert ((observed - expected) ** 2 / expected).sum() < 24.3


def test_noise_is_even_and_independent_over_seeds_and_positions():
    """Chi-square of pairs on a 10 x 10 grid: neighbouring seeds, positions and numbers of one."""
    seeds = np.repeat(np.arange(40, dtype=np.uint64), 40)
    cube = np.exp(-exponential(seeds, np.tile(np.arange(40), 40), 40)).reshape(40, 40, 40)
    neighbours = (
        (cube[:-1], cube[1:]), (cube[:, :-1], cube[:, 1:]), (cube[:, :, :-1], cube[:, :, 1:]),
    )  # fmt: skip
    for pairs in neighbours:
        cells = (10 * pairs[0]).astype(int) * 10 + (10 * pairs[1]).astype(int)
        observed = np.bincount(cells.ravel(), minlength=100)
        expected = cells.size / 100
        # 99 degrees of freedom: above 148.2 with probability 0.001.
        assert ((observed - expected) ** 2 / expected).sum() < 148.2


def test_streams_of_related_seeds_are_no_shifts_of_each_other():
    gamma = 0x9E3779B97F4A7C15
    one = exponential(np.zeros(50, np.uint64), np.arange(50), 2)
    other = exponential(np.full(50, gamma, np.uint64), np.arange(50), 2)
    assert not np.intersect1d(one, other).size


def test_splitmix_matches_the_published_numbers():
    """First outputs of splitmix64.c for seed 1234567."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seeds = np.full(3, 1234567, np.uint64)
    assert splitmix(seeds, np.arange(3, dtype=np.uint64)).tolist() == expected


def test_request_seed():
    assert request_seed(-1, 0, "a") == 2**64 - 1
    assert request_seed(5, 0, "a") == request_seed(5, 1, "b") == 5
    made = {request_seed(None, seed, name) for seed in (0, 1, -1) for name in "ab"}
    assert len(made) == 6 and all(0 <= seed < 2**64 for seed in made)


@pytest.mark.parametrize("vocab", [256, 300])
def test_first_max(vocab, generator):
    logits = torch.randn(50, vocab, generator=generator).round(decimals=1)
    values, ids = first_max(logits)
    assert np.array_equal(ids.numpy(), logits.numpy().argmax(-1))
    assert torch.equal(values, logits.amax(-1))
    logits[3, 200] = torch.nan
    assert first_max(logits)[0].isnan().nonzero().tolist() == [[3]]


@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_top_tokens_break_ties_by_id(count, generator):
    logits = torch.randn(40, 300, generator=generator).round(decimals=1)
    values, ids = top_tokens(logits, count)
    expected = np.argsort(-logits.numpy(), axis=-1, kind="stable")[:, :count]
    assert np.array_equal(ids.numpy(), expected)
    assert torch.equal(values, logits.gather(1, ids))


def test_logprobs(generator):
    logits = torch.randn(6, 300, generator=generator) * 4
    tokens, counts = np.array([0, 5, 9, 9, 1, 2]), np.array([0, 1, 3, 20, 300, 3], np.int32)
    expected = logits.double().log_softmax(-1)
    for row, entry in enumerate(token_logprobs(logits, tokens, counts)):
        assert entry.token_id == tokens[row]
        assert entry.logprob == pytest.approx(expected[row, tokens[row]].item(), abs=1e-5)
        assert entry.rank == 1 + int((expected[row] > expected[row, tokens[row]]).sum())
        best = expected[row].sort(descending=True)
        assert entry.top_ids == best.indices[: counts[row]].tolist()
        assert entry.top_logprobs == pytest.approx(best.values[: counts[row]].tolist(), abs=1e-5)


def test_repetition_penalty_is_transformers(generator):
    logits = torch.randn(3, 100, generator=generator)
    prompts = torch.randint(0, 100, (3, 12), generator=generator, dtype=torch.int32)
    output = [4, 99, 4]
    params = np.zeros(3, PARAMS)
    params["repetition_penalty"] = [1.3, 1.0, 0.7]
    found = logits.clone()
    nothing = np.zeros(0, np.int32)
    entries = []
    for row in range(3):
        counts = TokenCounts(prompts[row].numpy())
        counts.add(output)
        entries.append((row, counts, nothing))
    apply_penalties(found, entries, params)
    for row in range(3):
        ids = torch.cat([prompts[row].long(), torch.tensor(output)])[None]
        processor = RepetitionPenaltyLogitsProcessor(float(params["repetition_penalty"][row]))
        expected = processor(ids, logits[row : row + 1])
        torch.testing.assert_close(found[row : row + 1], expected)


def test_presence_and_frequency_penalties_are_openais(generator):
    """mu[j] -= c[j] * frequency + (c[j] > 0) * presence, c counting the output (and drafts)."""
    logits = torch.randn(1, 200, generator=generator)
    output, drafts = [3] * 5 + list(range(100)) + [150], [3, 160]
    params = np.zeros(1, PARAMS)
    names = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    params[list(names)] = (1.0, 0.7, -0.3)
    counts = TokenCounts(np.zeros(0, np.int32))
    counts.add([*output, 190, 3])
    counts.remove([190, 3])
    found = logits.clone()
    for _ in range(2):  # drafts do not stay
        found = logits.clone()
        apply_penalties(found, [(0, counts, np.array(drafts, np.int32))], params)
    c = np.bincount(output + drafts, minlength=200)
    expected = logits[0].numpy() - c * np.float32(-0.3) - (c > 0) * np.float32(0.7)
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-6)


def rules(**changes):
    none = np.zeros(0, np.int64)
    return Rules(
        **({"allowed": None, "bias_ids": none, "bias": none, "min_tokens": 0, "ending": none}
           | changes)
    )  # fmt: skip


def test_bad_words_are_transformers(generator):
    words = [[5], [1, 2], [7, 8, 9], [1, 2, 3]]
    processor = NoBadWordsLogitsProcessor(words)
    for output in ([1], [7, 8], [1, 2], [4, 1, 2], [7], [8, 9], [7, 8, 8, 1]):
        logits = torch.randn(1, 20, generator=generator)
        found = logits.clone()
        entry = (0, rules(bad_words=words), np.array(output, np.int32))
        apply_rules(found, [entry])
        assert torch.equal(found, processor(torch.tensor([output]), logits))


def test_rules_apply_to_their_rows(generator):
    logits = torch.randn(4, 30, generator=generator)
    output = np.array([1, 2], np.int32)
    entries = [
        (0, rules(allowed=np.array([3, 4]), min_tokens=3, ending=np.array([4])), output),
        (1, rules(min_tokens=2, ending=np.array([4])), output),
        (3, rules(bias_ids=np.array([0, 9]), bias=np.float32([2.5, -100])), output),
    ]
    found = logits.clone()
    apply_rules(found, entries)
    assert found[0].isfinite().nonzero().tolist() == [[3]] and found[0, 3] == logits[0, 3]
    assert torch.equal(found[1:3], logits[1:3])
    change = (found[3] - logits[3]).tolist()
    assert change[0] == pytest.approx(2.5) and change[9] == pytest.approx(-100, rel=1e-5)
    assert math.fsum(map(abs, change)) == pytest.approx(102.5, rel=1e-5)
