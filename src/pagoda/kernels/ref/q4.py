"""K and V in llama.cpp's q4_0: blocks of 32 dimensions, the last one of what is left, that share an
fp16 scale.

Of a block of n dimensions byte j has dimension j in its low nibble and n / 2 + j in its high one,
in two's complement. A head's part of a cache block is the bytes of all its tokens, [dim / 2,
block_size] or [block_size, dim / 2] as its layout has keys and values, and then the scales
[blocks of a row, block_size].
"""

import torch

from pagoda.core.kvcache.spec import Q4_BLOCK, Q4_SCALE_BYTES

Tensor = torch.Tensor
_WHOLE = Q4_BLOCK // 2 + Q4_SCALE_BYTES
"""Bytes of a block, its scale included."""


def head_dim(row: int) -> int:
    """The size of a head whose rows take so many bytes."""
    blocks, rest = divmod(row, _WHOLE)
    return blocks * Q4_BLOCK + (2 * (rest - Q4_SCALE_BYTES) if rest else 0)


def store(rows: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """fp32 K or V [tokens, kv_heads, head_dim] to the offsets [tokens] of blocks [tokens]."""
    codes, scales = encode(rows)
    code_places, scale_places = _parts(cache)
    code_places[blocks, :, offsets] = codes
    scale_places[blocks, :, offsets] = scales


def take(cache: Tensor, blocks: Tensor, heads: slice) -> tuple[Tensor, Tensor]:
    """Rows of blocks [n] as `encode` gives them: [n, heads, block_size, ...] each."""
    codes, scales = (part[:, heads].index_select(0, blocks) for part in _parts(cache))
    return codes, scales


def encode(rows: Tensor) -> tuple[Tensor, Tensor]:
    """rows [..., head_dim] as bytes [..., head_dim / 2] and bytes of fp16 scales [..., blocks, 2],
    uint8 both.

    Of a block's numbers of largest magnitude the first becomes -8, and what lies beyond 7 on the
    other side is cut off. A block with infinity or NaN in it reads as NaN throughout.
    """
    codes, scales = zip(*map(_encode_block, rows.float().split(Q4_BLOCK, dim=-1)), strict=True)
    return torch.cat(codes, dim=-1), torch.stack(scales, dim=-2)


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """What `encode` took, rounded: fp32 [..., head_dim]."""
    parts = []
    for index, some in enumerate(codes.split(Q4_BLOCK // 2, dim=-1)):
        # Copied, for where it lies need not be a place for an fp16 number.
        scale = scales[..., index, :].clone(memory_format=torch.contiguous_format)
        both = torch.cat((some << 4, some), dim=-1).view(torch.int8) >> 4
        parts.append(both * scale.view(torch.float16).float())
    return torch.cat(parts, dim=-1)


def _encode_block(x: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes [..., n / 2] and the bytes of the scale [..., 2] of fp32 x [..., n]."""
    # Not argmax, which on a GPU takes any of equal ones.
    magnitudes = x.abs()
    is_largest = magnitudes == magnitudes.amax(-1, keepdim=True)
    first = is_largest.cumsum(-1).eq(1) & is_largest
    largest = torch.where(first, x, 0).sum(-1, keepdim=True)
    finite = x.isfinite().all(-1, keepdim=True)
    step = torch.where(finite, largest / -8, torch.nan)
    inverse = torch.where(step.abs() >= torch.finfo(torch.float32).tiny, 1 / step, 0)
    # Rounded once, as by a fused multiplication and addition.
    shifted = (x.double() * inverse.double() + 8.5).float().nan_to_num(8)
    codes = (shifted.to(torch.uint8).clamp(max=15) ^ 8).where(finite, 0)
    low, high = codes.chunk(2, dim=-1)
    # Without rows `where` leaves a stride that has no view as bytes.
    stored = step.half().clone(memory_format=torch.contiguous_format)
    return low | (high << 4), stored.view(torch.uint8)


def _parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a cache [blocks, heads, block_size, row]: bytes of numbers [blocks, heads,
    block_size, dim / 2], and of scales [blocks, heads, block_size, blocks of a row, 2]."""
    by_dimension = cache.stride(3) != 1
    block_size, half = cache.shape[2], head_dim(cache.shape[3]) // 2
    heads = (cache.transpose(2, 3) if by_dimension else cache).flatten(2)
    codes, scales = heads.split((block_size * half, heads.shape[2] - block_size * half), dim=2)
    if by_dimension:
        codes = codes.unflatten(2, (half, block_size)).transpose(2, 3)
    else:
        codes = codes.unflatten(2, (block_size, half))
    return codes, scales.unflatten(2, (-1, block_size, Q4_SCALE_BYTES)).transpose(2, 3)
