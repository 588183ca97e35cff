"""Prompts of gated delta nets on tensor cores, 64 tokens of a request at once.

In two launches, as Yang et al. (arXiv 2412.06464, section 3.3) write the rule out. What the tokens
of a chunk do to each other does not depend on the state, so the first works it out for all chunks
of all requests side by side. The second takes the state from chunk to chunk, in products alone.

Products are of 16 bits. Numbers of fp32 that a state is made of go into them in two parts.
"""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.triton.attention import _request_of
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

_CHUNK = 64
_LEVELS = tl.constexpr(5)
"""1 << (levels + 1) is a chunk."""
_KEYS = 64
"""Dimensions of keys that are multiplied at once."""
_COLUMNS, _FEW_COLUMNS = 32, 16
"""Of a state, in a program: where tensor cores read operands in shared memory, and where these go
through registers."""
FEW = tl.constexpr(16)
"""Tokens of a request."""
EPS = tl.constexpr(1e-6)


@triton.jit
def is_short(write, start, end):
    """Whether a request goes token by token: it has few of them, or keeps a state behind each
    draft, as steps of one token leave it."""
    has_drafts = tl.load(write + end - 2, end > start + 1, other=0) > 0
    return has_drafts | (end - start <= FEW)


@triton.jit
def square_of(x):
    """[tokens] of fp32 x [tokens, key_dim]: the squares of the rows' lengths."""
    return tl.sum(x * x, axis=1)


@triton.jit
def per_length(square):
    """What makes rows with these squares one long."""
    return tl.rsqrt(square + EPS)


@triton.jit
def log_decay(x, rate, bias):
    x = x.to(tl.float32) + bias
    # softplus; for large x the logarithm is x itself, and the exponential would overflow.
    return rate * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _parts(x, dtype: tl.constexpr):
    """fp32 x in three parts of 16 bits, the largest first; the third of fp16 is zero."""
    high = x.to(dtype)
    rest = x - high.to(tl.float32)
    low = rest.to(dtype)
    return high, low, (rest - low.to(tl.float32)).to(dtype)


@triton.jit
def _times(x, high, low, lowest):
    """x, of 16 bits, times fp32 numbers in parts: as exact as a sum in fp32 is, for two parts of
    fp16 hold 22 bits and three of bf16 24."""
    if x.dtype == tl.bfloat16:
        return tl.dot(x, high, tl.dot(x, low, tl.dot(x, lowest)))
    return tl.dot(x, high, tl.dot(x, low))


@triton.jit
def _inverse(influence, chunk: tl.constexpr):
    """Of 1 + influence [chunk, chunk], which is strictly lower triangular; |influence| <= 1.

    From blocks of 2 on the diagonal to ones twice as large, each time
    [[a, 0], [x, b]]^-1 = [[a^-1, 0], [-b^-1 x a^-1, b^-1]]. Powers of influence would be fewer
    products, but grow to 10**4 where keys repeat, and cancel. No entry of an inverse exceeds 1, for
    the rule only ever takes from what a token told: fp16 holds them in two parts.
    """
    row, column = tl.arange(0, chunk)[:, None], tl.arange(0, chunk)[None, :]
    inverse = tl.where(row == column, 1.0, 0.0)
    inverse -= tl.where(row // 2 == column // 2, influence, 0.0)
    for level in tl.range(1, _LEVELS + 1, disable_licm=True):
        beside = (row >> level != column >> level) & (row >> level + 1 == column >> level + 1)
        inverse -= _times_wide(_times_wide(inverse, tl.where(beside, influence, 0.0)), inverse)
    return inverse


@triton.jit
def _times_wide(x, y):
    """fp32 x times y, both small enough for fp16."""
    x_high, x_low, _ = _parts(x, tl.float16)
    high, low, _ = _parts(y, tl.float16)
    return tl.dot(x_high, low, tl.dot(x_high, high, tl.dot(x_low, high)))


@triton.jit(do_not_specialize=["tokens", "requests"])
def _within(
    qkv, strength, decay, rate, bias, write, query_start, inverses, scores, scales, tokens,
    requests, heads, shared, key_dim, stride, strength_stride, decay_stride, scale,
    tiled: tl.constexpr, chunk: tl.constexpr, block_key: tl.constexpr,
):  # fmt: skip
    """What tokens of a chunk do to each other.

    With total decays g from the chunk's first token on, and keys and queries of unit length: the
    inverse T of 1 + beta_i exp(g_i - g_j) k_i k_j below the diagonal, times beta_j; the scores
    exp(g_i - g_j) q_i k_j; and what `_across` scales by.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    req = _request_of(tile, query_start, requests, chunk)
    is_real = req < requests
    start = tl.load(query_start + req)
    end = tl.load(query_start + req + 1, is_real, other=0)
    first = start + (tile - start // chunk - req) * chunk
    if is_real & (first < end):  # noqa: SIM102 - a value of the GPU's has no `and`
        if not is_short(write, start, end):
            token = (first + tl.arange(0, chunk)).to(tl.int64)
            real = token < end
            key_heads = heads // shared
            key_head = head % key_heads if tiled else head // shared
            of_queries = tl.zeros([chunk, chunk], tl.float32)
            of_keys = tl.zeros([chunk, chunk], tl.float32)
            q_square, k_square = tl.zeros([chunk], tl.float32), tl.zeros([chunk], tl.float32)
            for first_key in tl.range(0, key_dim, block_key, disable_licm=True):
                key = first_key + tl.arange(0, block_key)
                is_key = real[:, None] & (key < key_dim)[None, :]
                rows = qkv + token[:, None] * stride + key[None, :]
                q = tl.load(rows + key_head * key_dim, is_key, other=0.0)
                k = tl.load(rows + (key_heads + key_head) * key_dim, is_key, other=0.0)
                q_square += square_of(q.to(tl.float32))
                k_square += square_of(k.to(tl.float32))
                keys = tl.trans(k)
                of_queries = tl.dot(q, keys, of_queries)
                of_keys = tl.dot(k, keys, of_keys)
            per_q, per_k = per_length(q_square) * scale, per_length(k_square)
            beta = tl.sigmoid(
                tl.load(strength + token * strength_stride + head, real, other=0.0).to(tl.float32)
            )
            shrink = log_decay(
                tl.load(decay + token * decay_stride + head, real, other=0.0),
                tl.load(rate + head), tl.load(bias + head),
            )  # fmt: skip
            # Tokens behind the end change nothing.
            beta, shrink = tl.where(real, beta, 0.0), tl.where(real, shrink, 0.0)

            total = tl.cumsum(shrink, axis=0)
            part = tl.num_programs(1).to(tl.int64) * tokens
            at = scales + head * tokens + token
            decayed = tl.exp(total)
            tl.store(at, decayed * per_k, real)
            tl.store(at + part, decayed * per_q, real)
            tl.store(at + 2 * part, tl.exp(tl.sum(shrink, axis=0) - total) * per_k, real)
            tl.store(at + 3 * part, decayed, real)

            row, column = tl.arange(0, chunk)[:, None], tl.arange(0, chunk)[None, :]
            # Above the diagonal the difference is positive and its exponential might overflow.
            between = tl.where(row >= column, total[:, None] - total[None, :], -float("inf"))
            between = tl.exp(between) * per_k[None, :]
            influence = tl.where(row > column, (beta * per_k)[:, None] * between * of_keys, 0.0)
            seen = per_q[:, None] * between * of_queries
            at = (head * tokens + token)[:, None] * chunk + column
            tl.store(scores + at, seen.to(scores.dtype.element_ty), real[:, None])
            inverse = _inverse(influence, chunk) * beta[None, :]
            high, low, lowest = _parts(inverse, inverses.dtype.element_ty)
            tl.store(inverses + at, high, real[:, None])
            tl.store(inverses + part * chunk + at, low, real[:, None])
            if inverses.dtype.element_ty == tl.bfloat16:
                tl.store(inverses + 2 * part * chunk + at, lowest, real[:, None])


@triton.jit(do_not_specialize=["tokens"])
def _across(
    qkv, state, read, write, query_start, kv_lens, inverses, scores, scales, out, tokens,
    heads, shared, key_dim, value_dim, stride, slot_stride,
    tiled: tl.constexpr, chunk: tl.constexpr, block_key: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some columns of a request's state S, from chunk to chunk.

    d = T (v - exp(g) k S), out = exp(g) q S + scores d,
    S = exp(g_last) S + (exp(g_last - g) k)^T d.
    """
    column = tl.program_id(0) * block + tl.arange(0, block)
    head, req = tl.program_id(1), tl.program_id(2)
    start, end = tl.load(query_start + req), tl.load(query_start + req + 1)
    if not is_short(write, start, end):
        key = tl.arange(0, block_key)
        key_heads = heads // shared
        key_head = head % key_heads if tiled else head // shared
        is_value = column < value_dim
        inside = (key < key_dim)[:, None] & is_value[None, :]
        place = head * key_dim * value_dim + key[:, None] * value_dim + column[None, :]
        known = tl.where(tl.load(kv_lens + req) > end - start, key_dim, 0)
        slot = state + tl.load(read + req).to(tl.int64) * slot_stride
        now = tl.load(slot + place, inside & (key < known)[:, None], other=0.0)
        part = tl.num_programs(1).to(tl.int64) * tokens
        beside = tl.arange(0, chunk)[None, :]
        for first in tl.range(start, end, chunk, disable_licm=True):
            token = (first + tl.arange(0, chunk)).to(tl.int64)
            real = token < end
            is_key = real[:, None] & (key < key_dim)[None, :]
            rows = qkv + token[:, None] * stride
            q = tl.load(rows + key_head * key_dim + key[None, :], is_key, other=0.0)
            k = tl.load(rows + (key_heads + key_head) * key_dim + key[None, :], is_key, other=0.0)
            there = real[:, None] & is_value[None, :]
            values = rows + 2 * key_heads * key_dim + head * value_dim + column[None, :]
            v = tl.load(values, there, other=0.0)
            at = (head * tokens + token)[:, None] * chunk + beside
            seen = tl.load(scores + at, real[:, None], other=0.0)
            per = scales + head * tokens + token
            of_key = tl.load(per, real, other=0.0)
            of_query = tl.load(per + part, real, other=0.0)
            left = tl.load(per + 2 * part, real, other=0.0)
            last = tl.minimum(first + chunk, end) - 1
            fade = tl.load(scales + 3 * part + head * tokens + last)

            high, low, lowest = _parts(now, k.dtype)
            told = v.to(tl.float32) - of_key[:, None] * _times(k, high, low, lowest)
            # Results are rounded to so many bits anyway.
            result = of_query[:, None] * tl.dot(q, high)
            high, low, lowest = _parts(told, k.dtype)
            inverse = tl.load(inverses + at, real[:, None], other=0.0)
            d = _times(inverse, high, low, lowest)
            inverse = tl.load(inverses + part * chunk + at, real[:, None], other=0.0)
            d = tl.dot(inverse, high, d)
            if k.dtype == tl.bfloat16:
                d = tl.dot(inverse, low, d)
                inverse = tl.load(inverses + 2 * part * chunk + at, real[:, None], other=0.0)
                d = tl.dot(inverse, high, d)
            result = tl.dot(seen, d.to(k.dtype), result)
            high, low, lowest = _parts(left[:, None] * d, k.dtype)
            now = fade * now + _times(tl.trans(k), high, low, lowest)
            at = out + token[:, None] * (heads * value_dim) + head * value_dim + column[None, :]
            tl.store(at, result.to(out.dtype.element_ty), there)
        to = tl.load(write + end - 1).to(tl.int64)
        if to > 0:
            tl.store(state + to * slot_stride + place, now, inside)


def rule_of_chunks(
    qkv: Tensor,
    strength: Tensor,
    decay: Decay,
    state: Tensor,
    slots: StateSlots,
    out: Tensor,
    *,
    tiled: bool,
) -> None:
    """As `Ops.gated_delta_rule`, of requests that do not go token by token (`is_short`), into their
    rows of out [tokens, value_heads * value_dim]. qkv is fp16 or bf16."""
    heads, key_dim, value_dim = state.shape[1:]
    tokens, requests = qkv.shape[0], len(slots.kv_lens)
    shared = heads * key_dim * 2 // (qkv.shape[1] - heads * value_dim)
    # Each row is a token's, and its columns the tokens of its chunk.
    inverses = torch.empty((3, heads, tokens, _CHUNK), dtype=qkv.dtype, device=qkv.device)
    scores = torch.empty((heads, tokens, _CHUNK), dtype=qkv.dtype, device=qkv.device)
    scales = torch.empty((4, heads, tokens), dtype=torch.float32, device=qkv.device)
    block_key = max(16, triton.next_power_of_2(key_dim))
    _within[(tokens // _CHUNK + requests, heads)](
        qkv, strength, decay.x, decay.rate, decay.bias, slots.write, slots.query_start, inverses,
        scores, scales, tokens, requests, heads, shared, key_dim, qkv.stride(0),
        strength.stride(0), decay.x.stride(0), key_dim**-0.5, tiled=tiled, chunk=_CHUNK,
        block_key=min(_KEYS, block_key), num_warps=4, num_stages=1,
    )  # fmt: skip
    most = _COLUMNS if 90 <= capability(qkv) < 120 else _FEW_COLUMNS
    block = min(most, max(16, triton.next_power_of_2(value_dim)))
    _across[(triton.cdiv(value_dim, block), heads, requests)](
        qkv, state, slots.read, slots.write, slots.query_start, slots.kv_lens, inverses, scores,
        scales, out, tokens, heads, shared, key_dim, value_dim, qkv.stride(0), state.stride(0),
        tiled=tiled, chunk=_CHUNK, block_key=block_key, block=block, num_warps=4, num_stages=1,
    )  # fmt: skip
