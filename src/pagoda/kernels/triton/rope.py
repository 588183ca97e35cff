"""Rotary position embeddings (arXiv 2104.09864), pairs half a head apart."""

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@triton.jit
def _rotary(
    x, positions, cos_sin, out, heads, dim, half, stride, head_stride, table_stride,
    block_heads: tl.constexpr, block_half: tl.constexpr, block_rest: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block_heads + tl.arange(0, block_heads)[:, None]
    pair = tl.arange(0, block_half)[None, :]
    there = (head < heads) & (pair < half)
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * table_stride + pair
    cos = tl.load(angles, pair < half, other=0.0)
    sin = tl.load(angles + half, pair < half, other=0.0)
    at = x + token * stride + head * head_stride
    first = tl.load(at + pair, there, other=0.0).to(tl.float32)
    second = tl.load(at + half + pair, there, other=0.0).to(tl.float32)
    to = out + (token * heads + head) * dim
    kind = out.dtype.element_ty
    tl.store(to + pair, (first * cos - second * sin).to(kind), there)
    tl.store(to + half + pair, (second * cos + first * sin).to(kind), there)
    if block_rest > 0:
        column = 2 * half + tl.arange(0, block_rest)[None, :]
        passing = (head < heads) & (column < dim)
        tl.store(to + column, tl.load(at + column, passing), passing)


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    """As `Ops.rotary`."""
    return _rotated(q, positions, cos_sin), _rotated(k, positions, cos_sin)


def _rotated(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    tokens, heads, dim = x.shape
    assert x.stride(2) == 1 and cos_sin.stride(1) == 1
    half = cos_sin.shape[1] // 2
    out = torch.empty((tokens, heads, dim), dtype=x.dtype, device=x.device)
    block_half = triton.next_power_of_2(half)
    block_heads = min(triton.next_power_of_2(heads), max(1, 1024 // block_half))
    rest = dim - 2 * half
    _rotary[(tokens, triton.cdiv(heads, block_heads))](
        x, positions, cos_sin, out, heads, dim, half, x.stride(0), x.stride(1),
        cos_sin.stride(0), block_heads=block_heads, block_half=block_half,
        block_rest=triton.next_power_of_2(rest) if rest else 0,
    )  # fmt: skip
    return out
