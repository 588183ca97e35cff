"""A mixture of experts: who goes where, and the order in which experts take their tokens."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from pagoda.kernels.triton.order import LEAST, index_of, packed, value_of

Tensor = torch.Tensor

# Assignments that one program of the sort ranks: it compares each with each.
_CHUNK = 64
_CHANGING = ["count"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""


@triton.jit
def _route(
    logits, scales, ids, weights, experts, stride, top_k: tl.constexpr, scoring: tl.constexpr,
    renormalize: tl.constexpr, scaled: tl.constexpr, block: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, block)
    there = expert < experts
    row = tl.load(logits + token * stride + expert, there, other=float("-inf")).to(tl.float32)
    keys = tl.where(there, packed(row, expert), LEAST)
    place = tl.arange(0, block_k)
    chosen = tl.full([block_k], LEAST, tl.int64)
    for i in tl.static_range(top_k):
        best = tl.max(keys, axis=0)
        keys = tl.where(keys == best, LEAST, keys)
        chosen = tl.where(place == i, best, chosen)
    taken = place < top_k
    index, logit = index_of(chosen), value_of(chosen)
    top = tl.max(row, axis=0)
    if scoring == "sigmoid":
        share = tl.sigmoid(logit)
    else:
        share = tl.exp(logit - top)
        if scoring == "softmax":
            share = share / tl.sum(tl.exp(row - top), axis=0)
    share = tl.where(taken, share, 0.0)
    if scoring == "topk_softmax":
        share = share / tl.sum(share, axis=0)
    if renormalize:
        share = share / tl.sum(share, axis=0)
    if scaled:
        share *= tl.load(scales + index, taken, other=0.0)
    tl.store(ids + token * top_k + place, index, taken)
    tl.store(weights + token * top_k + place, share, taken)


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `kernels.ops.route`."""
    tokens, experts = logits.shape
    ids = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    _route[(tokens,)](
        logits, logits if scales is None else scales, ids, weights, experts, logits.stride(0),
        top_k=top_k, scoring=scoring, renormalize=renormalize, scaled=scales is not None,
        block=triton.next_power_of_2(experts), block_k=triton.next_power_of_2(top_k),
        num_warps=1,
    )  # fmt: skip
    return ids, weights


class Grouped(NamedTuple):
    """Assignments (a token's places in `ids`, flattened) in the order of their experts, within
    an expert in their own; those to experts that are not held come last."""

    counts: Tensor
    """int32 [experts]."""
    offsets: Tensor
    """int32 [experts + 1]: where each expert's begin, and where the last one's end."""
    order: Tensor
    """int32 [assignments]: which assignment lies here."""
    place: Tensor
    """int32 [assignments]: where each assignment lies; the inverse of `order`."""


@triton.jit
def _local_experts(ids, at, count, first, experts):
    """Experts counted from `first`; `experts` for those not held."""
    expert = tl.load(ids + at, at < count, other=-1).to(tl.int32) - first
    return tl.where((at < count) & (expert >= 0) & (expert < experts), expert, experts)


@triton.jit(do_not_specialize=_CHANGING)
def _count(ids, counts, count, first, experts, chunk: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * chunk + tl.arange(0, chunk)
    expert = _local_experts(ids, at, count, first, experts)
    # What lies behind the end counts as not held; nothing comes after those.
    found = tl.histogram(expert, block)
    which = tl.arange(0, block)
    tl.store(counts + tl.program_id(0) * (experts + 1) + which, found, which <= experts)


@triton.jit(do_not_specialize=_CHANGING)
def _rank(ids, starts, order, place, count, first, experts, chunk: tl.constexpr):
    inside = tl.arange(0, chunk)
    at = tl.program_id(0) * chunk + inside
    expert = _local_experts(ids, at, count, first, experts)
    again = _local_experts(ids, at, count, first, experts)
    equal = (expert[:, None] == again[None, :]) & (inside[None, :] < inside[:, None])
    rank = tl.sum(equal.to(tl.int32), axis=1)
    to = tl.load(starts + tl.program_id(0) * (experts + 1) + expert, at < count, other=0) + rank
    tl.store(order + to, at, at < count)
    tl.store(place + at, to, at < count)


def group_by_expert(ids: Tensor, experts: int, first: int = 0) -> Grouped:
    """Sort int64 `ids` [tokens, top_k] by expert; `experts` are held from `first` on.

    A counting sort without atomics: the order is stable and the same each time.
    """
    count = ids.numel()
    chunks = triton.cdiv(count, _CHUNK)
    empty = partial(torch.empty, dtype=torch.int32, device=ids.device)
    counts = empty((chunks, experts + 1))
    block = triton.next_power_of_2(experts + 1)
    _count[(chunks,)](ids, counts, count, first, experts, chunk=_CHUNK, block=block, num_warps=1)
    ends = counts.cumsum(0, dtype=torch.int32)
    # A copy: kernels are compiled for how memory is aligned, and that of a row depends on `chunks`.
    totals = ends[-1].clone()
    offsets = F.pad(totals.cumsum(0, dtype=torch.int32), (1, 0))
    starts = ends - counts + offsets[:-1]
    order, place = empty(count), empty(count)
    _rank[(chunks,)](ids, starts, order, place, count, first, experts, chunk=_CHUNK, num_warps=4)
    return Grouped(totals[:-1], offsets[:-1], order, place)
