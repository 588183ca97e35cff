"""Norms and rotation of q and k, and the store of K and V in the paged cache."""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.kv_cache import KVScales
from pagoda.kernels.triton.caches import cache_form
from pagoda.kernels.triton.products.fp8 import encode_fp8

Tensor = torch.Tensor

_TOKENS = 4
"""Tokens of a program, which has one head of each: small steps fill a GPU, large ones start few
enough."""
# Added to a number and taken off again it leaves the nearest integer, ties to even.
_ROUNDER = tl.constexpr(1.5 * 2**23)
_TINY = tl.constexpr(2.0**-126)


def rotary_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    norms: tuple[Tensor, Tensor, float, bool] | None = None,
    q_scales: Tensor | None = None,
    values_are_keys: bool = False,
    kv_scales: KVScales | None = None,
) -> Tensor:
    """As `AttentionBackend.store`; q [tokens, heads, dim] is contiguous memory of its own.

    Computed in fp32 up to the end. Caches may hold either 8-bit float.
    """
    cache = cache_form(k_cache, v_cache)
    tokens, dim, kv_heads = qkv.shape[0], cache.dim, cache.heads
    heads = qkv.shape[1] // dim - kv_heads * (1 if values_are_keys else 2)
    q = torch.empty((tokens, heads, dim), dtype=qkv.dtype, device=qkv.device)
    q_norm, k_norm, eps, norm_values = norms or (None, None, 0.0, False)
    k_scales, v_scales = kv_scales or (None, None)
    _rotary_store[(triton.cdiv(tokens, _TOKENS), heads + 2 * kv_heads)](
        q, cache.k, cache.v, qkv, positions, cos_sin, slot_mapping, q_norm, k_norm, q_scales,
        k_scales, v_scales, tokens, qkv.stride(0), cache.k.stride(0), cache.v.stride(0), eps,
        ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1], HEADS=heads, KV_HEADS=kv_heads,
        DIM=dim, DIM_PAD=triton.next_power_of_2(dim), BLOCK_SIZE=cache.block_size,
        STORAGE=cache.storage, NORM_VALUES=norm_values, VALUES_ARE_KEYS=values_are_keys,
        TOKENS=_TOKENS, num_warps=4 if dim > 128 else 2,
    )  # fmt: skip
    return q


def rotate(
    q: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    dim: int,
    norm: tuple[Tensor, float] | None = None,
    q_scales: Tensor | None = None,
) -> Tensor:
    """As `AttentionBackend.rotate`; the result is contiguous memory of its own. It is the kernel of
    `rotary_store` without heads of k and v."""
    tokens, heads = q.shape[0], q.shape[1] // dim
    out = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    weight, eps = norm or (None, 0.0)
    _rotary_store[(triton.cdiv(tokens, _TOKENS), heads)](
        out, out, out, q, positions, cos_sin, positions, weight, None, q_scales, None, None,
        tokens, q.stride(0), 0, 0, eps,
        ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1], HEADS=heads, KV_HEADS=0, DIM=dim,
        DIM_PAD=triton.next_power_of_2(dim), BLOCK_SIZE=1, STORAGE="plain", NORM_VALUES=False,
        VALUES_ARE_KEYS=False, TOKENS=_TOKENS, num_warps=4 if dim > 128 else 2,
    )  # fmt: skip
    return out


@triton.jit
def _inverse_rms(x, eps, DIM: tl.constexpr):
    """[tokens, 1] of x [tokens, dims], zeros behind DIM."""
    return tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]


@triton.jit
def _load(rows, dims, mask):
    return tl.load(rows[:, None] + dims[None, :], mask=mask, other=0).to(tl.float32)


@triton.jit
def _rotated(rows, position, cos_sin, norm, eps, real, dims, ROTARY_DIM: tl.constexpr,
             DIM: tl.constexpr):  # fmt: skip
    """fp32 [tokens, dims] of the heads at `rows` [tokens], after their norm."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    mask = real[:, None] & (dims[None, :] < DIM)
    x = _load(rows, dims, mask)
    if norm is not None:
        inverse = _inverse_rms(x, eps, DIM)
        x = x * inverse * tl.load(norm + dims, mask=dims < DIM, other=0)[None, :]
    if ROTARY_DIM > 0:
        # What a dimension is mixed with lies half of the rotated ones away.
        turned = dims < ROTARY_DIM
        other = tl.where(dims < HALF, dims + HALF, dims - HALF)
        other = tl.where(turned, other, dims)
        y = _load(rows, other, mask)
        if norm is not None:
            y = y * inverse * tl.load(norm + other, mask=dims < DIM, other=0)[None, :]
        angle = cos_sin + position[:, None] * ROTARY_DIM + (dims % HALF)[None, :]
        known = real[:, None] & turned[None, :]
        cos = tl.load(angle, mask=known, other=1.0)
        sin = tl.load(angle + HALF, mask=known, other=0.0)
        x = x * cos + tl.where(dims < HALF, -1.0, 1.0)[None, :] * y * sin
    return x


@triton.jit
def _store_row(places, scales, x, mask, real, STORAGE: tl.constexpr):
    """fp32 x [tokens, dims] to `places`; an int8 row's scale to `scales` [tokens]."""
    if STORAGE == "int8":
        # The second part is NaN where a number of the row is infinite or none, and zero else.
        scale = tl.max(tl.abs(x), 1) / 127.0 + tl.sum(x * 0.0, 1)
        inverse = tl.where(scale < _TINY, 0.0, 1.0 / scale)
        whole = x * inverse[:, None] + _ROUNDER - _ROUNDER
        whole = tl.where(whole != whole, 0.0, whole)
        tl.store(places, whole.to(tl.int8), mask=mask)
        tl.store(scales.to(tl.pointer_type(tl.float32), bitcast=True), scale, mask=real)
    elif STORAGE == "e4m3":
        tl.store(places, encode_fp8(x, 3), mask=mask)
    elif STORAGE == "e5m2":
        tl.store(places, encode_fp8(x, 2), mask=mask)
    else:
        tl.store(places, x.to(places.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _rotary_store(
    q, k_cache, v_cache, qkv, positions, cos_sin, slot_mapping, q_norm, k_norm, q_scales,
    k_scales, v_scales, num_tokens, qkv_row, k_block, v_block, eps,
    ROTARY_DIM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, STORAGE: tl.constexpr,
    NORM_VALUES: tl.constexpr, VALUES_ARE_KEYS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    real = token < num_tokens
    line = token.to(tl.int64)
    dims = tl.arange(0, DIM_PAD)
    mask = real[:, None] & (dims[None, :] < DIM)
    position = line
    if ROTARY_DIM > 0 or q_scales is not None:
        position = tl.load(positions + token, mask=real, other=0)
    slot = tl.load(slot_mapping + token, mask=real, other=0)
    block, at = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    ROW: tl.constexpr = DIM + 4 if STORAGE == "int8" else DIM
    rows = qkv + line * qkv_row + head * DIM
    if head < HEADS:
        x = _rotated(rows, position, cos_sin, q_norm, eps, real, dims, ROTARY_DIM, DIM)
        if q_scales is not None:
            x *= tl.load(q_scales + position, mask=real, other=0.0)[:, None]
        places = q + (line * HEADS + head)[:, None] * DIM + dims[None, :]
        tl.store(places, x.to(q.dtype.element_ty), mask=mask)
    elif head < HEADS + KV_HEADS:
        x = _rotated(rows, position, cos_sin, k_norm, eps, real, dims, ROTARY_DIM, DIM)
        if k_scales is not None:
            x *= 1.0 / tl.load(k_scales + head - HEADS)
        keys = k_cache + block * k_block + ((head - HEADS) * BLOCK_SIZE + at) * ROW
        _store_row(keys[:, None] + dims[None, :], keys + DIM, x, mask, real, STORAGE)
    else:
        kv_head = head - HEADS - KV_HEADS
        if VALUES_ARE_KEYS:
            rows -= KV_HEADS * DIM
        x = _load(rows, dims, mask)
        if NORM_VALUES:
            x *= _inverse_rms(x, eps, DIM)
        if v_scales is not None:
            x *= 1.0 / tl.load(v_scales + kv_head)
        values = v_cache + block * v_block + (kv_head * BLOCK_SIZE + at) * ROW
        _store_row(values[:, None] + dims[None, :], values + DIM, x, mask, real, STORAGE)
