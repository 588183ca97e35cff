"""A mixture of experts: who goes where, and what the chosen ones compute."""

from typing import NamedTuple

import torch

from pagoda.kernels.ref.activation import activate
from pagoda.kernels.ref.linear import matmul

Tensor = torch.Tensor


class Gating(NamedTuple):
    """How [gate, up] become one: activation(gate) * up, or with a limit (up + 1) * gate *
    sigmoid(alpha * gate), gate at most the limit and up within +- it."""

    alpha: float = 1.0
    limit: float = 0.0
    activation: str = "silu"


class PlainExperts(NamedTuple):
    """A matrix and, if there are any, a bias per expert."""

    weight: Tensor
    """[experts, rows, columns]."""
    bias: Tensor | None
    """[experts, rows]."""


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `Ops.route`."""
    logits = logits.float()
    ids = logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    chosen = logits.gather(1, ids)
    if scoring == "softmax":
        weights = logits.softmax(-1).gather(1, ids)
    else:
        weights = chosen.softmax(-1) if scoring == "topk_softmax" else chosen.sigmoid()
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights if scales is None else weights * scales[ids]


def mix(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up: PlainExperts,
    down: PlainExperts,
    gating: Gating,
    first: int,
    weighs_inputs: bool,
) -> Tensor:
    """As `Ops.mix_experts`, of plain matrices, one expert after the other."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(len(up.weight)):
        rows, places = torch.where(ids == first + expert)
        if len(rows):
            share = weights[rows, places, None]
            given = (x[rows] * share).to(x.dtype) if weighs_inputs else x[rows]
            inner = gate(_multiply(given, up, expert), gating)
            y = _multiply(inner, down, expert).float()
            out.index_add_(0, rows, y if weighs_inputs else y * share)
    return out.to(x.dtype)


def gate(x: Tensor, gating: Gating) -> Tensor:
    """x = [gate, up] on the last dimension."""
    gate, up = x.chunk(2, dim=-1)
    if not gating.limit:
        return activate(gate, gating.activation) * up
    gate, up = gate.clamp(max=gating.limit), up.clamp(-gating.limit, gating.limit)
    return gate * torch.sigmoid(gating.alpha * gate) * (up + 1)


def _multiply(x: Tensor, experts: PlainExperts, expert: int) -> Tensor:
    bias = None if experts.bias is None else experts.bias[expert]
    return matmul(x, experts.weight[expert], bias)
