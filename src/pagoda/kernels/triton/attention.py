"""Attention over the paged KV cache, keys and values of which lie token by token, and without.

A program has a tile of a request's queries: the heads that share a KV head, of one or more tokens.
Long contexts of few queries are cut into splits, and the last program to end merges their results,
in their order: how they are cut depends on the request alone, never on its neighbours. Tiles that
see most keys come first. Only those on the diagonal and at a window's edge are masked.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.kv_cache import KVScales
from pagoda.kernels.triton.arrivals import arrivals
from pagoda.kernels.triton.attention_cuts import (
    SPLIT_QUERIES,
    Form,
    cuts,
    encoder_form,
    form_of,
)
from pagoda.kernels.triton.attention_tiles import (
    absorb,
    blocks_of,
    capped,
    score,
    value_tile,
)
from pagoda.kernels.triton.caches import CacheForm, cache_form
from pagoda.kernels.triton.target import capability, processors

Tensor = torch.Tensor

_MIN_SPLIT = 256
"""Keys. The partial result of a split costs 8 bytes per head and dimension, its keys and values 4
per dimension and key (bf16): 6% for 8 heads that share a KV head."""
_MAX_SPLITS = 32
_PROGRAMS_PER_PROCESSOR = 4
_CONVERTS_E4M3 = 89
"""Capability from which on two e4m3 are converted by one instruction."""
_LOG2E = tl.constexpr(1.4426950408889634)
_CHANGING = ["num_tokens", "num_reqs", "most_splits", "table_row"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    kv_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunked: bool = False,
    sinks: Tensor | None = None,
    cap: float | None = None,
    sees_until: Tensor | None = None,
    kv_scales: KVScales | None = None,
    host_query_start: npt.NDArray[np.int32] | None = None,
) -> Tensor:
    """As `AttentionBackend.attend`; caches may hold either 8-bit float. With `host_query_start`
    [num_reqs + 1] partial results take room for the tokens that have some, and no more."""
    cache = cache_form(k_cache, v_cache)
    (tokens, heads, dim), reqs = q.shape, kv_lens.shape[0]
    form = form_of(q, cache, heads // cache.heads, few=tokens <= reqs)
    splits = _most_splits(block_table.shape[1] * cache.block_size, window, form.keys)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    how: dict[str, Any] = {
        "scale": scale, "window": window, "chunked": chunked, "sinks": sinks,
        "cap": cap, "kv_scales": kv_scales,
    }  # fmt: skip
    if splits == 1 or host_query_start is None:
        most = min(tokens, reqs * SPLIT_QUERIES)
        step = _Step(block_table, query_start, kv_lens, sees_until, most, splits)
        _attend(out, q, cache, form, step, **how)
        return out
    for first, end, most in cuts(host_query_start, heads * splits * (dim + 2) * 4):
        begin = int(host_query_start[first])
        # Behind the last request lie the rows of nobody.
        part = slice(begin, tokens if end == reqs else int(host_query_start[end]))
        starts = query_start[first : end + 1]
        seen = sees_until
        if end - first < reqs:
            starts = starts - begin
            seen = None if sees_until is None else sees_until[part].clone()
        own = slice(first, end)
        step = _Step(block_table[own], starts, kv_lens[own], seen, most, splits)
        _attend(out[part], q[part], cache, form, step, **how)
    return out


class _Step(NamedTuple):
    """Requests whose queries are attended to by one launch."""

    block_table: Tensor
    query_start: Tensor
    kv_lens: Tensor
    sees_until: Tensor | None
    most_rows: int
    """Tokens of requests that may be split: no others have partial results."""
    splits: int
    """The most that any request has."""


def _attend(
    out: Tensor,
    q: Tensor,
    cache: CacheForm,
    form: Form,
    step: _Step,
    *,
    scale: float,
    window: int | None,
    chunked: bool,
    sinks: Tensor | None,
    cap: float | None,
    kv_scales: KVScales | None,
) -> None:
    """Into `out`, of q's shape."""
    block_table, query_start, kv_lens, sees_until, most_rows, splits = step
    (tokens, heads, dim), reqs = q.shape, kv_lens.shape[0]
    group = heads // cache.heads
    block_q = form.rows // group
    tiles = tokens // block_q + reqs + 1
    padded = max(16, triton.next_power_of_2(dim))
    partial = tops = arrived = None
    if splits > 1:
        kept = (max(1, most_rows), heads, splits)
        arrived = arrivals(q.device, tiles * cache.heads)
        partial = torch.empty((*kept, dim), dtype=torch.float32, device=q.device)
        tops = torch.empty((*kept, 2), dtype=torch.float32, device=q.device)
    k_scales, v_scales = kv_scales or (None, None)
    enough = _PROGRAMS_PER_PROCESSOR * processors(q)
    side_by_side = max(1, min(splits, enough // (tiles * cache.heads)))
    _paged_attention[(tiles * cache.heads, side_by_side)](
        out, partial, tops, arrived, q, cache.k, cache.v, block_table, query_start, kv_lens,
        sinks, sees_until, k_scales, v_scales, tokens, reqs, splits, q.stride(0), q.stride(1),
        cache.k.stride(0), cache.v.stride(0), block_table.stride(0), scale, window, cap,
        CHUNKED=chunked, KV_HEADS=cache.heads, GROUP=group, DIM=dim,
        DIM_PAD=padded, CHUNK=min(form.dims, padded), BLOCK_SIZE=cache.block_size,
        STORAGE=_read_as(cache.storage, capability(q)), BLOCK_Q=block_q, ROWS=form.rows,
        KEYS=form.keys, MIN_SPLIT=_MIN_SPLIT, MAX_SPLITS=_MAX_SPLITS, SPLIT_QUERIES=SPLIT_QUERIES,
        num_warps=form.warps, num_stages=form.stages,
    )  # fmt: skip


def _read_as(storage: str, target: int) -> str:
    """`storage`, or how a GPU with instructions for it reads it."""
    return "e4m3x2" if storage == "e4m3" and target >= _CONVERTS_E4M3 else storage


def encoder_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """As `ops.encoder_attention`."""
    (tokens, heads, dim), reqs = q.shape, query_start.shape[0] - 1
    form = encoder_form(q)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _encoder_attention[(tokens // form.rows + reqs + 1, heads)](
        out, q, k, v, query_start, tokens, reqs, heads * dim, *q.stride()[:2], *k.stride()[:2],
        *v.stride()[:2], scale, window or 0, DIM=dim, DIM_PAD=max(16, triton.next_power_of_2(dim)),
        ROWS=form.rows, KEYS=form.keys, num_warps=form.warps, num_stages=form.stages,
    )  # fmt: skip
    return out


def _most_splits(keys: int, window: int | None, tile_keys: int) -> int:
    """The most splits of any request with so few queries that it is split."""
    if window is not None:
        keys = min(keys, window + SPLIT_QUERIES + 2 * tile_keys)
    return min(_MAX_SPLITS, -(-(keys + tile_keys) // _MIN_SPLIT))


@triton.jit
def _request_of(tile, query_start, num_reqs, BLOCK_Q: tl.constexpr):
    """The request that `tile` is of: request i has the tiles from query_start[i] // BLOCK_Q + i on.
    The rows behind all requests are those of one more."""
    req = -1
    for first in range(0, num_reqs + 1, 256):
        index = first + tl.arange(0, 256)
        starts = tl.load(query_start + index, mask=index <= num_reqs, other=0)
        begins = (starts // BLOCK_Q + index <= tile) & (index <= num_reqs)
        req += tl.sum(begins.to(tl.int32), 0)
    return req


@triton.jit
def _start(sinks, head, real, split, ROWS: tl.constexpr):
    """(largest logit, sum) before any key: the first split has the sinks."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if sinks is not None and split == 0:
        top = tl.load(sinks + head, mask=real, other=0.0) * _LOG2E
        total += 1.0
    return top, total


@triton.jit
def _partial_rows(req, query_start, SPLIT_QUERIES: tl.constexpr):
    """How many partial results lie before those of a request: one for each token of those before it
    that may be split."""
    rows = 0
    for first in range(0, req, 256):
        index = first + tl.arange(0, 256)
        begins = tl.load(query_start + index, mask=index < req, other=0)
        count = tl.load(query_start + index + 1, mask=index < req, other=0) - begins
        rows += tl.sum(tl.where(count <= SPLIT_QUERIES, count, 0), 0)
    return rows


@triton.jit
def _sight(token, real, before, line, sees_until, window, CHUNKED: tl.constexpr):
    """The first key [rows] that each token of a request sees, and the one behind its last."""
    position = before + token
    ends = position + 1
    if sees_until is not None:
        ends = tl.load(sees_until + line, mask=real, other=0)
    begins = tl.zeros(token.shape, tl.int32)
    if window is not None:
        begins = position - position % window if CHUNKED else tl.maximum(position + 1 - window, 0)
    return begins, ends


@triton.jit
def _merge(
    out, partial, tops, rows_out, kept, splits, most_splits, real, inside, dims,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, MAX_SPLITS: tl.constexpr,
):  # fmt: skip
    """Put together what splits made of a tile's rows; `kept` [rows] are the places of theirs. Other
    processors wrote that: what this one may hold of it is old."""
    split = tl.arange(0, MAX_SPLITS)
    at = kept * most_splits
    places = tops + (at[:, None] + split[None, :]) * 2
    known = real[:, None] & (split < splits)[None, :]
    top = tl.load(places, mask=known, other=float("-inf"), cache_modifier=".cg")
    highest = tl.max(top, 1)
    highest = tl.where(real, highest, 0.0)
    sums = tl.load(places + 1, mask=known, other=0.0, cache_modifier=".cg")
    total = tl.sum(sums * tl.exp2(top - highest[:, None]), 1)
    acc = tl.zeros((kept.shape[0], DIM_PAD), tl.float32)
    for index in range(splits):
        own = tl.load(tops + (at + index) * 2, mask=real, other=0.0, cache_modifier=".cg")
        part = tl.load(partial + (at + index)[:, None] * DIM + dims[None, :], mask=inside,
                       other=0.0, cache_modifier=".cg")  # fmt: skip
        acc += tl.exp2(own - highest)[:, None] * part
    result = acc / tl.where(real, total, 1.0)[:, None]
    tl.store(out + rows_out[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty),
             mask=inside)  # fmt: skip


@triton.jit
def _attend_part(
    top, total, acc, queries, q_rows, real, table, k_cache, v_cache, k_block, v_block, end, begins,
    ends, first_seen, low, high, dims, scale, cap, window, k_scales, v_scales, kv_head,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    STORAGE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Take the tiles of keys from `low` to `high` into (largest logit, sum, weighted values)."""
    if k_scales is not None:
        scale *= tl.load(k_scales + kv_head)
    # Tiles between these are seen by all rows, and not masked.
    whole = tl.cdiv(tl.max(tl.where(real, begins, 0), 0), KEYS)
    whole_end = tl.min(tl.where(real, ends, 1 << 30), 0) // KEYS
    plain = tl.minimum(tl.maximum(whole, low), high)
    plain_end = tl.maximum(plain, tl.minimum(whole_end, high))
    block = blocks_of(table, plain, end, BLOCK_SIZE, KEYS)
    for index in range(plain, plain_end):
        # Of the next tile, so that its keys need not wait for it.
        next_block = blocks_of(table, index + 1, end, BLOCK_SIZE, KEYS)
        offset = (index * KEYS + tl.arange(0, KEYS)) % BLOCK_SIZE
        logits = (scale * _LOG2E) * score(
            queries, q_rows, real, k_cache, block * k_block, offset, DIM, DIM_PAD, CHUNK,
            STORAGE,
        )  # fmt: skip
        if cap is not None:
            logits = capped(logits, cap * _LOG2E)
        values = value_tile(v_cache, block * v_block, offset, None, dims, DIM, STORAGE,
                             queries.dtype)  # fmt: skip
        top, total, acc = absorb(logits, values, top, total, acc)
        block = next_block
    # The window's edge and the diagonal.
    for edge in range(high - low - (plain_end - plain)):
        index = low + edge
        index += tl.where(index < plain, 0, plain_end - plain)
        at = index * KEYS + tl.arange(0, KEYS)
        block, offset = blocks_of(table, index, end, BLOCK_SIZE, KEYS), at % BLOCK_SIZE
        logits = (scale * _LOG2E) * score(
            queries, q_rows, real, k_cache, block * k_block, offset, DIM, DIM_PAD, CHUNK,
            STORAGE,
        )  # fmt: skip
        if cap is not None:
            logits = capped(logits, cap * _LOG2E)
        values = value_tile(v_cache, block * v_block, offset, (at >= first_seen) & (at < end),
                             dims, DIM, STORAGE, queries.dtype)  # fmt: skip
        visible = at[None, :] < ends[:, None]
        if window is not None:
            visible &= at[None, :] >= begins[:, None]
        logits = tl.where(visible, logits, float("-inf"))
        top, total, acc = absorb(logits, values, top, total, acc)
    if v_scales is not None:
        acc *= tl.load(v_scales + kv_head)
    return top, total, acc


@triton.jit(do_not_specialize=_CHANGING)
def _paged_attention(
    out, partial, tops, arrived, q, k_cache, v_cache, block_table, query_start, kv_lens, sinks,
    sees_until, k_scales, v_scales, num_tokens, num_reqs, most_splits, q_row, q_head, k_block,
    v_block, table_row, scale, window, cap,
    CHUNKED: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr, STORAGE: tl.constexpr,
    BLOCK_Q: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    MIN_SPLIT: tl.constexpr, MAX_SPLITS: tl.constexpr, SPLIT_QUERIES: tl.constexpr,
):  # fmt: skip
    # The last tile of a prompt sees most.
    place = tl.num_programs(0) - 1 - tl.program_id(0)
    tile, kv_head, first_split = place // KV_HEADS, place % KV_HEADS, tl.program_id(1)
    req = _request_of(tile, query_start, num_reqs, BLOCK_Q)
    begin = tl.load(query_start + req)
    count = tl.load(query_start + req + 1, mask=req < num_reqs, other=num_tokens) - begin
    first_token = (tile - begin // BLOCK_Q - req) * BLOCK_Q
    if first_token >= count:
        return
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    real = (row < BLOCK_Q * GROUP) & (token < count)
    line = (begin + token).to(tl.int64)
    dims = tl.arange(0, DIM_PAD)
    inside = real[:, None] & (dims[None, :] < DIM)
    HEADS: tl.constexpr = KV_HEADS * GROUP
    if req == num_reqs:
        if first_split == 0:
            places = out + (line * HEADS + head)[:, None] * DIM + dims[None, :]
            tl.store(places, 0.0, mask=inside)
        return

    begins, ends = _sight(token, real, tl.load(kv_lens + req) - count, line, sees_until, window,
                          CHUNKED)  # fmt: skip
    first_seen = tl.min(tl.where(real, begins, 1 << 30), 0)
    end = tl.max(tl.where(real, ends, 0), 0)
    # Counted in tiles of keys, so that the compiler knows where they begin.
    first = first_seen // KEYS
    size = tl.cdiv(end, KEYS) - first
    share, splits = size, 1
    if partial is not None and count <= SPLIT_QUERIES:
        share = tl.maximum(tl.cdiv(size, MAX_SPLITS), MIN_SPLIT // KEYS)
        splits = tl.cdiv(size, share)
    q_rows = q + line * q_row + head * q_head
    queries = tl.load(q_rows[:, None] + dims[None, :], mask=inside, other=0)
    HEAD: tl.constexpr = (DIM + 4 if STORAGE == "int8" else DIM) * BLOCK_SIZE
    k_cache, v_cache = k_cache + kv_head * HEAD, v_cache + kv_head * HEAD
    table = block_table + req.to(tl.int64) * table_row
    for split in range(first_split, splits, tl.num_programs(1)):
        top, total = _start(sinks, head, real, split, ROWS)
        acc = tl.zeros((ROWS, DIM_PAD), tl.float32)
        low = first + split * share
        top, total, acc = _attend_part(
            top, total, acc, queries, q_rows, real, table, k_cache, v_cache, k_block, v_block, end,
            begins, ends, first_seen, low, tl.minimum(low + share, first + size), dims, scale, cap,
            window, k_scales, v_scales, kv_head, DIM, DIM_PAD, CHUNK, BLOCK_SIZE, STORAGE, KEYS,
        )  # fmt: skip
        # Volatile, or these addresses would be known, and hold registers, through the loop above.
        begin = tl.load(query_start + req, volatile=True)
        rows_out = (begin + token).to(tl.int64) * HEADS + head
        if splits == 1:
            result = (acc / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty)
            tl.store(out + rows_out[:, None] * DIM + dims[None, :], result, mask=inside)
        elif partial is not None:
            kept = _partial_rows(req, query_start, SPLIT_QUERIES) + token
            at = (kept.to(tl.int64) * HEADS + head) * most_splits + split
            tl.store(tops + at * 2, top, mask=real)
            tl.store(tops + at * 2 + 1, total, mask=real)
            tl.store(partial + at[:, None] * DIM + dims[None, :], acc, mask=inside)
    if partial is not None:
        sharers = tl.minimum(splits, tl.num_programs(1))
        if (splits > 1) & (first_split < sharers):
            # All of a program has stored before it says so.
            tl.debug_barrier()
            if tl.atomic_add(arrived + place, 1, sem="acq_rel") == sharers - 1:
                tl.store(arrived + place, 0)
                line = (tl.load(query_start + req, volatile=True) + token).to(tl.int64)
                kept = (_partial_rows(req, query_start, SPLIT_QUERIES) + token).to(tl.int64)
                _merge(out, partial, tops, line * HEADS + head, kept * HEADS + head, splits,
                       most_splits, real, inside, dims, DIM, DIM_PAD, MAX_SPLITS)  # fmt: skip


@triton.jit(do_not_specialize=_CHANGING)
def _encoder_attention(
    out, q, k, v, query_start, num_tokens, num_reqs, out_row, q_row, q_head, k_row, k_head,
    v_row, v_head, scale, window,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    req = _request_of(tile, query_start, num_reqs, ROWS)
    begin = tl.load(query_start + req)
    count = tl.load(query_start + req + 1, mask=req < num_reqs, other=num_tokens) - begin
    first_token = (tile - begin // ROWS - req) * ROWS
    if first_token >= count:
        return
    token = first_token + tl.arange(0, ROWS)
    line = (begin + token).to(tl.int64)
    dims = tl.arange(0, DIM_PAD)
    inside = (token < count)[:, None] & (dims[None, :] < DIM)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, DIM_PAD), tl.float32)
    if req < num_reqs:
        queries = tl.load(q + line[:, None] * q_row + head * q_head + dims[None, :],
                          mask=inside, other=0)  # fmt: skip
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        first_key, keys_end = 0, count
        if window > 0:
            first_key = tl.maximum(first_token - window + 1, 0) // KEYS * KEYS
            keys_end = tl.minimum(first_token + ROWS - 1 + window, count)
        for start in range(first_key, keys_end, KEYS):
            at = start + tl.arange(0, KEYS)
            row = (begin + at).to(tl.int64)
            seen = at < count
            keys = tl.load(k + row[None, :] * k_row + head * k_head + dims[:, None],
                           mask=seen[None, :] & (dims[:, None] < DIM), other=0)  # fmt: skip
            values = tl.load(v + row[:, None] * v_row + head * v_head + dims[None, :],
                             mask=seen[:, None] & (dims[None, :] < DIM), other=0)  # fmt: skip
            logits = tl.dot(queries, keys, input_precision="ieee") * (scale * _LOG2E)
            # Of one shape in both cases, as Triton wants it.
            visible = seen[None, :] & (token >= 0)[:, None]
            if window > 0:
                visible &= tl.abs(token[:, None] - at[None, :]) < window
            logits = tl.where(visible, logits, float("-inf"))
            top, total, acc = absorb(logits, values, top, total, acc)
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    places = line[:, None] * out_row + head * DIM + dims[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=inside)
