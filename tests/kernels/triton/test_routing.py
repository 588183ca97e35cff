"""Routing tokens to experts, in Triton, against its reference and torch's sorts."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels import ops
from pagoda.kernels.ref import experts as reference
from pagoda.kernels.triton.products import routing
from tests.kernels.triton.forms import TOLERANCE, spread_rows


@pytest.mark.pairwise
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 5), (37, 3), (130, 8)])
@pytest.mark.parametrize("scoring", ["softmax", "topk_softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_route(experts, top_k, scoring, renormalize, dtype, device):
    # Rounded, so that many are equal, and in rows that lie apart.
    logits = (spread_rows((7, experts), dtype, device) * 4).round() / 2
    logits = torch.cat((logits, logits), dim=1)[:, :experts]
    ids, weights, _ = reference.route(logits, top_k, scoring, renormalize)
    found = routing.route(logits, top_k, scoring, renormalize)
    assert torch.equal(found[0], ids)
    torch.testing.assert_close(found[1], weights, rtol=2e-6, atol=1e-7)
    scales = torch.rand(experts, device=device)
    arguments = (logits, top_k, scoring, renormalize, scales)
    weights = reference.route(*arguments)[1]
    torch.testing.assert_close(routing.route(*arguments)[1], weights, rtol=2e-6, atol=1e-7)


@pytest.mark.pairwise
@pytest.mark.parametrize(("experts", "top_k"), [(5, 5), (37, 3), (130, 8)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (5, 3)])
def test_corrected_route(experts, top_k, scoring, groups, top_groups, device):
    experts += -experts % groups
    top_k = min(top_k, experts // groups * top_groups)
    experts = max(experts, 2 * groups)
    logits = spread_rows((7, experts), torch.float32, device) * 2
    correction = ops.Correction(torch.randn(experts, device=device) / 3, groups, top_groups)
    arguments = (logits, top_k, scoring, True, torch.rand(experts, device=device), correction)
    ids, weights, _ = reference.route(*arguments)
    found = routing.route(*arguments)
    assert torch.equal(found[0], ids)
    torch.testing.assert_close(found[1], weights, rtol=2e-6, atol=1e-7)


def test_ids_stay_in_range_whatever_the_logits(device):
    logits = torch.tensor([[torch.nan] * 3, [-torch.inf] * 3, [0.0, -0.0, torch.nan]])
    ids = routing.route(logits.to(device), 2)[0]
    assert ids.tolist() == [[0, 1], [0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts"), [(1, 1, 1), (3, 2, 9), (67, 3, 12), (300, 8, 130), (9, 1, 5000)]
)
def test_group_by_expert(tokens, top_k, experts, device):
    ids = torch.rand(tokens, experts, device=device).topk(top_k).indices
    check_groups(routing.group_by_expert(ids, experts), ids, experts)


def check_groups(found, ids, experts):
    assert torch.equal(found.order.long(), ids.flatten().sort(stable=True).indices)
    counts = ids.flatten().bincount(minlength=experts)
    assert torch.equal(found.counts.long(), counts)
    assert torch.equal(found.offsets.long(), counts.cumsum(0) - counts)


@pytest.mark.parametrize(("experts", "top_k"), [(5, 1), (16, 1), (37, 3), (130, 8)])
def test_one_kernel_chooses_and_orders(experts, top_k, device):
    """Some steps one behind the other, which count their programs in the same place."""
    few, many = max(1, 3 * experts // 4 // top_k), 256 // top_k
    for tokens in (many, 1, 3 * many, few, few + 1):
        logits = (torch.randn(tokens, experts, device=device) * 4).round() / 2
        found = routing.route(logits, top_k, "topk_softmax")
        ids, weights, _ = reference.route(logits, top_k, "topk_softmax")
        assert torch.equal(found.ids, ids)
        torch.testing.assert_close(found.weights, weights, rtol=2e-6, atol=1e-7)
        assert (found.groups is None) is (tokens * top_k <= 0.75 * experts)
        if found.groups is not None:
            check_groups(found.groups, ids, experts)


def test_a_step_without_tokens(device):
    groups = routing.group_by_expert(torch.zeros(0, 2, dtype=torch.int64, device=device), 3)
    assert groups.counts.tolist() == [0, 0, 0] and not len(groups.order)
