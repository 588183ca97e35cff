"""A mixture of experts: who goes where, and the order in which experts take their tokens.

One kernel does all of it. A program chooses the experts of some tokens, counts them, and ranks
tokens of the same expert; the last program to come so far adds up what all have counted. What it
computes does not depend on which program that is.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref import experts as reference
from pagoda.kernels.ref.experts import Correction, Grouped, Routed
from pagoda.kernels.triton.arrivals import arrivals
from pagoda.kernels.triton.order import LEAST, index_of, packed, value_of

Tensor = torch.Tensor

_MOST_WITHOUT_ORDER = 0.75
"""Assignments (a token's places in `ids`) for each expert: of so few hardly two have the same, and
each computes alone."""
_CHUNK = 64
"""Assignments that a program ranks: it compares each with each."""
_LOGITS = 4096
"""A program holds so many at most, with 16 bytes each."""
_ADDED, _PLACED = tl.constexpr(4096), tl.constexpr(2048)
"""Counts and assignments that the last program takes at once."""
_CHANGING = ["tokens"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""


@triton.jit
def _choose(
    logits, scales, added, token, there, experts, stride, TOP_K: tl.constexpr,
    SCORING: tl.constexpr, RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(experts, their weights), each [tokens, BLOCK_K]."""
    expert = tl.arange(0, BLOCK)[None, :]
    known = there[:, None] & (expert < experts)
    at = logits + token.to(tl.int64)[:, None] * stride + expert
    row = tl.load(at, known, other=float("-inf")).to(tl.float32)
    top = tl.max(row, axis=1)[:, None]
    rank = row
    if added is not None:
        if SCORING == "sigmoid":
            rank = tl.sigmoid(row)
        else:
            rank = tl.exp(row - top) / tl.sum(tl.exp(row - top), axis=1)[:, None]
        rank += tl.load(added + expert, expert < experts, other=0.0)
    keys = tl.where(known, packed(rank, expert), LEAST)
    place = tl.arange(0, BLOCK_K)[None, :]
    chosen = tl.full([token.shape[0], BLOCK_K], LEAST, tl.int64)
    for i in tl.static_range(TOP_K):
        best = tl.max(keys, axis=1)[:, None]
        keys = tl.where(keys == best, LEAST, keys)
        chosen = tl.where(place == i, best, chosen)
    taken = there[:, None] & (place < TOP_K)
    index, logit = index_of(chosen), value_of(chosen)
    if added is not None:
        at = logits + token.to(tl.int64)[:, None] * stride + index
        logit = tl.load(at, taken, other=0.0).to(tl.float32)
    if SCORING == "sigmoid":
        share = tl.sigmoid(logit)
    else:
        share = tl.exp(logit - top)
        if SCORING == "softmax":
            share = share / tl.sum(tl.exp(row - top), axis=1)[:, None]
    share = tl.where(taken, share, 0.0)
    if SCORING == "topk_softmax":
        share = share / tl.sum(share, axis=1)[:, None]
    if RENORMALIZE:
        share = share / tl.sum(share, axis=1)[:, None]
    if scales is not None:
        share *= tl.load(scales + index, taken, other=0.0)
    return index, share


@triton.jit
def _add_up(counts, totals, offsets, chunks, experts, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Put where each chunk's assignments begin, expert by expert, in the place of `counts`
    [chunks, experts]."""
    which, line = tl.arange(0, BLOCK), tl.arange(0, ROWS)
    total = tl.zeros([BLOCK], tl.int32)
    for first in range(0, chunks, ROWS):
        chunk = first + line
        known = (chunk < chunks)[:, None] & (which < experts)[None, :]
        at = counts + chunk[:, None] * experts + which[None, :]
        # Other processors wrote these: what this one may hold of them is old.
        total += tl.sum(tl.load(at, known, other=0, cache_modifier=".cg"), axis=0)
    tl.store(totals + which, total, which < experts)
    begins = tl.cumsum(total, 0) - total
    tl.store(offsets + which, begins, which < experts)
    for first in range(0, chunks, ROWS):
        chunk = first + line
        known = (chunk < chunks)[:, None] & (which < experts)[None, :]
        at = counts + chunk[:, None] * experts + which[None, :]
        found = tl.load(at, known, other=0, cache_modifier=".cg")
        tl.store(at, begins[None, :] + tl.cumsum(found, 0) - found, known)
        begins += tl.sum(found, axis=0)


@triton.jit
def _place(
    ids, ranks, starts, order, assignments, experts, CHUNK: tl.constexpr, PLACED: tl.constexpr
):
    for first in range(0, assignments, PLACED):
        at = first + tl.arange(0, PLACED)
        real = at < assignments
        expert = tl.load(ids + at, real, other=0, cache_modifier=".cg").to(tl.int32)
        rank = tl.load(ranks + at, real, other=0, cache_modifier=".cg")
        start = tl.load(starts + (at // CHUNK) * experts + expert, real, other=0,
                        cache_modifier=".cg")  # fmt: skip
        tl.store(order + start + rank, at, real)


@triton.jit(do_not_specialize=_CHANGING)
def _route(
    logits, scales, added, ids, weights, counts, ranks, totals, offsets, order, arrived, tokens,
    experts, stride, CHOOSES: tl.constexpr, TOP_K: tl.constexpr, SCORING: tl.constexpr,
    RENORMALIZE: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    chunk, chunks = tl.program_id(0), tl.num_programs(0)
    token = chunk * TOKENS + tl.arange(0, TOKENS)
    place = tl.arange(0, BLOCK_K)[None, :]
    there = token < tokens
    taken = there[:, None] & (place < TOP_K)
    at = token[:, None] * TOP_K + place
    if CHOOSES:
        expert, share = _choose(logits, scales, added, token, there, experts, stride, TOP_K,
                                SCORING, RENORMALIZE, BLOCK, BLOCK_K)  # fmt: skip
        tl.store(ids + at, expert, taken)
        tl.store(weights + at, share, taken)
    else:
        expert = tl.load(ids + at, taken, other=0)
    if order is not None:
        mine = tl.reshape(tl.where(taken, expert, -1).to(tl.int32), [TOKENS * BLOCK_K])
        inside = tl.arange(0, TOKENS * BLOCK_K)
        equal = (mine[:, None] == mine[None, :]) & (inside[None, :] < inside[:, None])
        rank = tl.reshape(tl.sum(equal.to(tl.int32), axis=1), [TOKENS, BLOCK_K])
        tl.store(ranks + at, rank, taken)
        which = tl.arange(0, BLOCK)
        found = tl.sum((mine[:, None] == which[None, :]).to(tl.int32), axis=0)
        tl.store(counts + chunk * experts + which, found, which < experts)
        # All of a program has stored before it says so.
        tl.debug_barrier()
        if tl.atomic_add(arrived, 1, sem="acq_rel") == chunks - 1:
            tl.store(arrived, 0)
            ROWS: tl.constexpr = max(1, _ADDED // BLOCK)
            _add_up(counts, totals, offsets, chunks, experts, ROWS, BLOCK)
            tl.debug_barrier()
            _place(ids, ranks, counts, order, tokens * TOP_K, experts, TOKENS * TOP_K, _PLACED)


def route(
    logits: Tensor,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = False,
    scales: Tensor | None = None,
    correction: Correction | None = None,
) -> Routed:
    """As `kernels.ops.route`; groups of experts are torch's. Few assignments are given no order."""
    if correction is not None and correction.groups > correction.top_groups:
        return reference.route(logits, top_k, scoring, renormalize, scales, correction)
    tokens, experts = logits.shape
    ids = torch.empty((tokens, top_k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    groups = None
    if ids.numel() > _MOST_WITHOUT_ORDER * experts:
        groups = _empty_groups(ids, experts)
    added = None if correction is None else correction.added
    _launch(logits, scales, added, ids, weights, groups, experts, scoring, renormalize)
    return Routed(ids, weights, groups)


def group_by_expert(ids: Tensor, experts: int) -> Grouped:
    """The order of int64 `ids` [tokens, top_k], which are below `experts` and in memory end to
    end."""
    groups = _empty_groups(ids, experts)
    _launch(None, None, None, ids, None, groups, experts)
    return groups


def _empty_groups(ids: Tensor, experts: int) -> Grouped:
    empty = partial(torch.empty, dtype=torch.int32, device=ids.device)
    return Grouped(empty(experts), empty(experts), empty(ids.numel()))


def _launch(
    logits: Tensor | None,
    scales: Tensor | None,
    added: Tensor | None,
    ids: Tensor,
    weights: Tensor | None,
    groups: Grouped | None,
    experts: int,
    scoring: str = "",
    renormalize: bool = False,
) -> None:
    tokens, top_k = ids.shape
    if not tokens:
        if groups is not None:
            groups.counts.zero_()
        return
    block, block_k = triton.next_power_of_2(experts), triton.next_power_of_2(top_k)
    each = max(1, min(_CHUNK // block_k, _LOGITS // block))
    chunks = triton.cdiv(tokens, each)
    counts = ranks = arrived = None
    if groups is not None:
        counts = torch.empty((chunks, experts), dtype=torch.int32, device=ids.device)
        ranks = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
        arrived = arrivals(ids.device, 1)
    _route[(chunks,)](
        logits, scales, added, ids, weights, counts, ranks, *(groups or (None,) * 3), arrived,
        tokens, experts, 0 if logits is None else logits.stride(0), CHOOSES=logits is not None,
        TOP_K=top_k, SCORING=scoring, RENORMALIZE=renormalize, TOKENS=each, BLOCK=block,
        BLOCK_K=block_k, num_warps=8 if groups is not None else 4,
    )  # fmt: skip
