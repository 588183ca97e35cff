"""A mixture of experts: who goes where, and what the chosen ones compute."""

from typing import NamedTuple

import torch

from pagoda.kernels.ref.activation import activate
from pagoda.kernels.ref.adapters import ExpertAdapters, adapt
from pagoda.kernels.ref.linear import matmul

Tensor = torch.Tensor


class Gating(NamedTuple):
    """How [gate, up] become one: activation(gate) * up, or with a limit (up + 1) * gate *
    sigmoid(alpha * gate), gate at most the limit and up within +- it. Where there is one matrix
    instead of two, both are what it gives."""

    alpha: float = 1.0
    limit: float = 0.0
    activation: str = "silu"


class PlainExperts(NamedTuple):
    """A matrix and, if there are any, a bias per expert."""

    weight: Tensor
    """[experts, rows, columns]."""
    bias: Tensor | None
    """[experts, rows]."""


class Grouped(NamedTuple):
    """Assignments (a token's places in `ids`, flattened) in the order of their experts, within
    an expert in their own."""

    counts: Tensor
    """int32 [experts]."""
    offsets: Tensor
    """int32 [experts]: where each expert's begin."""
    order: Tensor
    """int32 [assignments]: which assignment lies here."""


class Routed(NamedTuple):
    """Who goes where."""

    ids: Tensor
    """int64 [tokens, top_k]: each token's experts."""
    weights: Tensor
    """fp32 [tokens, top_k]."""
    groups: Grouped | None = None
    """Where a form has worked it out for its `mix_experts`."""


class Correction(NamedTuple):
    """What experts are chosen by, beside their weights."""

    added: Tensor
    """fp32 [experts]: what each one's weight is more for that."""
    groups: int = 1
    """Experts lie in so many equal groups."""
    top_groups: int = 1
    """So many of them are open to choice: those whose best add up to most, the lower ones first
    of equals."""
    group_best: int = 2
    """So many of a group's are added up: 1 or 2."""


class Beside(NamedTuple):
    """What is added to a mixture: what a shared expert made of the same tokens."""

    x: Tensor
    """[tokens, hidden]."""
    gate: Tensor | None = None
    """[tokens, 1], rows any stride apart; x is multiplied by its sigmoid."""


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    scales: Tensor | None = None,
    correction: Correction | None = None,
) -> Routed:
    """As `Ops.route`."""
    logits = logits.float()
    keys = logits
    if correction is not None:
        shares = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(-1)
        keys = _open(shares + correction.added, correction)
    ids = keys.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    chosen = logits.gather(1, ids)
    if scoring == "softmax":
        weights = logits.softmax(-1).gather(1, ids)
    else:
        weights = chosen.softmax(-1) if scoring == "topk_softmax" else chosen.sigmoid()
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routed(ids, weights if scales is None else weights * scales[ids])


def _open(keys: Tensor, correction: Correction) -> Tensor:
    """keys [tokens, experts], -inf in groups that are not open to choice."""
    if correction.groups == correction.top_groups:
        return keys
    groups = keys.unflatten(-1, (correction.groups, -1))
    best = groups.topk(correction.group_best, dim=-1).values.sum(-1)
    closed = best.argsort(dim=-1, descending=True, stable=True)[:, correction.top_groups :]
    shut = torch.zeros_like(best, dtype=torch.bool).scatter_(1, closed, True)
    opened: Tensor = groups.masked_fill(shut[..., None], -torch.inf).flatten(1)
    return opened


def mix(
    x: Tensor,
    routed: Routed,
    up: PlainExperts,
    down: PlainExperts,
    gating: Gating,
    first: int,
    weighs_inputs: bool,
    adapters: ExpertAdapters | None = None,
) -> Tensor:
    """As `ops.mix_experts`, of plain matrices, one expert after the other."""
    ids, weights, _ = routed
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(len(up.weight)):
        rows, places = torch.where(ids == first + expert)
        if len(rows):
            share = weights[rows, places, None]
            given = (x[rows] * share).to(x.dtype) if weighs_inputs else x[rows]
            inner = _multiply(given, up, expert)
            beside = None if adapters is None else adapters.slots[rows] * len(up.weight) + expert
            if adapters is not None and beside is not None:
                adapt(inner, given, adapters.up, beside)
            if inner.shape[1] == down.weight.shape[2]:
                inner = torch.cat([inner, inner], dim=1)
            read = gate(inner, gating)
            y = _multiply(read, down, expert).float()
            if adapters is not None and beside is not None:
                adapt(y, read, adapters.down, beside)
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
