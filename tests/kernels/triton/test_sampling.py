"""Choosing among logits in Triton against the references."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref import draw as drawing
from pagoda.kernels.ref import sampling as reference
from pagoda.kernels.triton import draw, sampling


def logits_with_ties(rows, vocab, device):
    return ((torch.randn(rows, vocab) * 6).round() / 2).to(device)


@pytest.fixture
def small_splits(monkeypatch):
    """Several stages for few logits: the interpreter sorts slowly."""
    monkeypatch.setattr(sampling, "_SPLIT", 64)


@pytest.mark.parametrize("vocab", [1, 5, 300, 5000])
def test_first_max(vocab, small_splits, device):
    logits = logits_with_ties(5, vocab, device)
    logits[1] = -torch.inf
    logits[2, vocab // 2] = torch.nan
    logits[3] = torch.where(torch.arange(vocab, device=device) % 2 == 0, 0.0, -0.0)
    values, ids = sampling.first_max(logits)
    expected, where = reference.first_max(logits)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ids[[0, 1, 3, 4]], where[[0, 1, 3, 4]])


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (150, 1), (300, 6)])
def test_top_tokens(vocab, count, small_splits, device):
    logits = logits_with_ties(2, vocab, device)
    found, expected = sampling.top_tokens(logits, count), drawing.top_tokens(logits, count)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_more_top_tokens_than_the_kernel_takes(device):
    logits = logits_with_ties(2, 700, device)
    found = sampling.top_tokens(logits, sampling.MAX_TOP + 1)
    order = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found[1], order.indices[:, : sampling.MAX_TOP + 1])


@pytest.mark.parametrize("vocab", [5, 64, 300])
def test_mask_logits(vocab, device):
    logits = logits_with_ties(4, vocab, device)
    index = torch.tensor([3, 1], device=device)
    masks = torch.randint(-(2**31), 2**31 - 1, (2, -(-vocab // 32)), dtype=torch.int32)
    masks = masks.to(device)
    expected = logits.clone()
    reference.mask_logits(expected, index, masks)
    sampling.mask_logits(logits, index, masks)
    assert torch.equal(logits, expected)


def params(*rows):
    """Of rows (temperature, top_k, top_p, min_p), with seeds of 64 bits."""
    chance = np.random.default_rng(len(rows))
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return drawing.DrawParams(
        np.array(temperature, np.float32), np.array(top_k, np.int32),
        np.array(top_p, np.float64), np.array(min_p, np.float32),
        chance.integers(0, 2**64, len(rows), dtype=np.uint64),
        chance.integers(0, 9000, len(rows)),
    )  # fmt: skip


def assert_same_draws(logits, settings):
    expected = torch.full((len(logits),), -7, device=logits.device)
    found = expected.clone()
    top = logits.amax(-1)
    drawing.draw_into(expected, logits, top, settings)
    draw.draw(found, logits, top, settings)
    assert torch.equal(found, expected)


LIMITS = [
    (0.0, 3, 0.5, 0.1), (0.7, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.07), (1.5, 3, 1.0, 0.0),
    (1.0, 0, 0.6, 0.0), (2.0, 4, 0.8, 0.01),
]  # fmt: skip


@pytest.mark.parametrize("vocab", [5, 700, 5000])
def test_draws(vocab, device):
    assert_same_draws(torch.randn(6, vocab, device=device) * 3, params(*LIMITS))


def test_draws_among_equals_and_beyond_the_buffer(monkeypatch, device):
    """Top-k keeps all equals of the k-th, top-p the first; the buffer has room for few."""
    monkeypatch.setattr(draw, "_ROOM", 16)
    monkeypatch.setattr(draw, "_BLOCK", 256)
    logits = logits_with_ties(5, 700, device)
    logits[0] = 0.0
    settings = [(1.0, 0, 0.3, 0.0), (1.0, 9, 1.0, 0.0), (3.0, 40, 0.7, 0.0), (1.0, 0, 0.9, 0.0)]
    assert_same_draws(logits, params(*settings, (1.0, 0, 0.5, 1.0)))


def test_no_token_beyond_the_limits(monkeypatch, device):
    """Of equals top-p keeps the first, and the buffer may be too small for the bound's tokens."""
    monkeypatch.setattr(draw, "_ROOM", 16)
    monkeypatch.setattr(draw, "_BLOCK", 128)
    assert_same_draws(torch.zeros(20, 9, device=device), params(*[(1.0, 0, 0.4, 0.0)] * 20))
    logits = torch.full((12, 40), -50.0, device=device)
    logits[:, 8:32] = torch.arange(24, device=device) / 100
    assert_same_draws(logits, params(*[(1.0, 17, 1.0, 0.0)] * 12))


def test_draws_where_few_are_allowed(device):
    logits = torch.full((3, 300), -torch.inf, device=device)
    logits[:, [7, 150, 299]] = torch.tensor([1.0, 2.0, 1.5], device=device)
    assert_same_draws(logits, params((1.0, 0, 1.0, 0.0), (1.0, 50, 1.0, 0.0), (1.0, 50, 0.9, 0.0)))


def test_frequencies_follow_softmax(device):
    """100 draws of one row: a mistake shared with the reference would show here."""
    count = 100
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0], device=device).repeat(count, 1)
    settings = params(*[(1.0, 0, 1.0, 0.0)] * count)
    tokens = torch.zeros(count, dtype=torch.int64, device=device)
    draw.draw(tokens, logits, logits.amax(-1), settings)
    expected = logits[0].softmax(-1)
    found = tokens.bincount(minlength=4) / count
    # Four standard deviations.
    assert ((found - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt()).all()
