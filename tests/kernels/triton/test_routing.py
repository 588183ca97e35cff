"""Routing tokens to experts, in Triton, against its reference and torch's sorts."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.ref import experts as reference
from pagoda.kernels.triton.products import routing
from tests.kernels.triton.forms import TOLERANCE, spread_rows


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 5), (37, 3), (130, 8)])
@pytest.mark.parametrize("scoring", ["softmax", "topk_softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_route(experts, top_k, scoring, renormalize, dtype, device):
    # Rounded, so that many are equal, and in rows that lie apart.
    logits = (spread_rows((7, experts), dtype, device) * 4).round() / 2
    logits = torch.cat((logits, logits), dim=1)[:, :experts]
    ids, weights = reference.route(logits, top_k, scoring, renormalize)
    found = routing.route(logits, top_k, scoring, renormalize)
    assert torch.equal(found[0], ids)
    torch.testing.assert_close(found[1], weights, rtol=2e-6, atol=1e-7)
    scales = torch.rand(experts, device=device)
    arguments = (logits, top_k, scoring, renormalize, scales)
    weights = reference.route(*arguments)[1]
    torch.testing.assert_close(routing.route(*arguments)[1], weights, rtol=2e-6, atol=1e-7)


def test_ids_stay_in_range_whatever_the_logits(device):
    logits = torch.tensor([[torch.nan] * 3, [-torch.inf] * 3, [0.0, -0.0, torch.nan]])
    ids = routing.route(logits.to(device), 2)[0]
    assert ids.tolist() == [[0, 1], [0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "first"), [(1, 1, 1, 0), (3, 2, 9, 0), (67, 3, 12, 5)]
)
def test_group_by_expert(tokens, top_k, experts, first, device):
    ids = torch.randint(0, first + experts + 4, (tokens, top_k), device=device)
    found = routing.group_by_expert(ids, experts, first)
    local = ids.flatten() - first
    local[(local < 0) | (local >= experts)] = experts
    order = local.sort(stable=True).indices
    counts = local.bincount(minlength=experts + 1)[:experts]
    assert torch.equal(found.order.long(), order)
    assert torch.equal(found.counts.long(), counts)
    assert found.offsets.tolist() == [0, *counts.cumsum(0).tolist()]
    assert torch.equal(found.place.long()[order], torch.arange(len(order), device=device))
