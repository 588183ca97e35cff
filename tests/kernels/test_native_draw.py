"""Native draws against the reference's, token by token, and against transformers' limits."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from pagoda.kernels.ref.draw import DrawParams, draw_into

native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)
from pagoda.kernels.cpu.ops import CpuOps  # noqa: E402 - behind the skip

LIMITS = [
    (0, 1.0, 0.0), (1, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.02, 0.0), (0, 0.6, 0.0), (0, 0.97, 0.0),
    (0, 1.0, 0.3), (0, 1.0, 0.004), (10, 0.7, 0.05), (50, 0.9, 0.01), (4000, 0.99, 0.0),
]  # fmt: skip


@pytest.fixture(params=native.INSTRUCTION_SETS)
def ops(request) -> CpuOps:
    return CpuOps(native.Native(2, request.param))


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def params(count, limits=(0, 1.0, 0.0), temperature=1.0, seed=1) -> DrawParams:
    top_k, top_p, min_p = limits
    return DrawParams(
        np.full(count, temperature, np.float32),
        np.full(count, top_k, np.int32),
        np.full(count, top_p),
        np.full(count, min_p, np.float32),
        np.full(count, seed, np.uint64),
        np.arange(count),
    )


def drawn(draw, logits, how) -> torch.Tensor:
    tokens = torch.full((len(logits),), -5)
    draw(tokens, logits, logits.amax(-1), how)
    return tokens


@pytest.mark.parametrize("vocab", [1, 5, 128, 300, 1024, 40_001])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_same_tokens_as_the_reference(ops, vocab, spread, generator):
    count = 400 if vocab < 10_000 else 40
    logits = spread * torch.randn(count, vocab, generator=generator)
    logits[::2] = logits[::2].bfloat16().float()  # many ties
    for limits in [one for one in LIMITS if one[0] < vocab]:
        for temperature in (0.6, 1.7):
            how = params(count, limits, temperature)
            found, expected = (drawn(draw, logits, how) for draw in (ops.draw, draw_into))
            # The last bits of exp differ: who was about to draw may change places.
            assert (found != expected).sum() <= 1, (limits, temperature)


@pytest.mark.parametrize("limits", LIMITS)
def test_distribution_is_that_of_transformers_processors(ops, limits, generator):
    draws = 6000
    logits = 2.5 * torch.randn(300, generator=generator)
    top_k, top_p, min_p = limits
    scores = logits[None] / 0.9
    for wanted, warper in ((min_p > 0, lambda: MinPLogitsWarper(min_p)),
                           (top_k > 0, lambda: TopKLogitsWarper(top_k)),
                           (top_p < 1, lambda: TopPLogitsWarper(top_p))):  # fmt: skip
        scores = warper()(None, scores) if wanted else scores
    expected = scores[0].double().softmax(-1)
    tokens = drawn(ops.draw, logits.expand(draws, -1).contiguous(), params(draws, limits, 0.9))
    found = torch.bincount(tokens, minlength=300).double() / draws
    deviation = (expected * (1 - expected) / draws).sqrt()
    assert ((found - expected).abs() <= 5 * deviation + 1.5 / draws).all()
    assert not found[expected == 0].any()


def test_rows_of_all_kinds_side_by_side(ops, generator):
    """Greedy rows keep their token, and each row is drawn as it is alone."""
    logits = 2 * torch.randn(len(LIMITS) + 1, 5000, generator=generator)
    columns = [params(1, limits, seed=9) for limits in [*LIMITS, LIMITS[0]]]
    columns[-1].temperature[:] = 0
    together = DrawParams(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))
    tokens = drawn(ops.draw, logits, together)
    assert tokens[-1] == -5
    for row, how in enumerate(columns):
        assert drawn(ops.draw, logits[row : row + 1], how) == tokens[row]


@pytest.mark.parametrize("limits", LIMITS)
def test_rows_without_a_token_to_draw(ops, limits):
    """Their tokens stay, whatever the logits are; the caller sees the fault by their maximum."""
    logits = torch.zeros(3, 300)
    logits[0], logits[1, 7], logits[2] = -torch.inf, torch.nan, torch.nan
    tokens = drawn(ops.draw, logits, params(3, limits))
    assert tokens[0] == tokens[2] == -5
    assert tokens[1] == -5 or 0 <= tokens[1] < 300


@pytest.mark.parametrize("limits", [(0, 1.0, 0.0), (0, 0.95, 0.0), (40, 1.0, 0.0)])
def test_forbidden_tokens_are_never_drawn(ops, limits, generator):
    logits = torch.randn(500, 700, generator=generator)
    logits[:, ::3] = -torch.inf
    assert (drawn(ops.draw, logits, params(500, limits)) % 3 != 0).all()


def test_wrong_shapes_are_refused(ops):
    with pytest.raises(ValueError, match="top_k has shape"):
        how = params(2)._replace(top_k=np.zeros(3, np.int32))
        drawn(ops.draw, torch.zeros(2, 9), how)
