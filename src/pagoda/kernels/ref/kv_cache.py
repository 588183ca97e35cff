"""How K and V of one layer lie in the paged cache.

V is [num_blocks, kv_heads, block_size, row]: a row is one token's head_dim elements of one head, in
int8 with their fp32 scale behind them. K is [num_blocks, kv_heads, row, block_size], so that keys
are scored as vectors of one dimension each: [head_dim, block_size] elements, in int8 with the fp32
scales [block_size] behind them.
"""

import torch

from pagoda.core.kvcache.spec import INT8_SCALE_BYTES

Tensor = torch.Tensor
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
Shape = tuple[int, int, int, int]


def shapes(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[Shape, Shape]:
    """Of K and of V."""
    row = head_dim + _scale_elements(dtype)
    return (num_blocks, kv_heads, row, block_size), (num_blocks, kv_heads, block_size, row)


def head_dim(v_cache: Tensor) -> int:
    return v_cache.shape[-1] - _scale_elements(v_cache.dtype)


def store_keys(k: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """k [tokens, kv_heads, head_dim] to the offsets [tokens] of blocks [tokens]."""
    rows = encode(k, cache.dtype)
    dim, block_size = k.shape[-1], cache.shape[3]
    cache[blocks, :, :dim, offsets] = rows[..., :dim]
    if cache.dtype == torch.int8:
        places = dim * block_size + offsets[:, None] * INT8_SCALE_BYTES
        places = places + torch.arange(INT8_SCALE_BYTES, device=places.device)
        heads = cache.view(*cache.shape[:2], -1)
        heads[blocks[:, None], :, places] = rows[..., dim:].transpose(1, 2)


def store_values(v: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """As `store_keys`."""
    cache[blocks, :, offsets] = encode(v, cache.dtype)


def key_rows(keys: Tensor) -> Tensor:
    """Blocks of K [..., row, block_size] as V's are: [..., block_size, row]."""
    if keys.dtype != torch.int8:
        return keys.transpose(-1, -2)
    dim, block_size = keys.shape[-2] - INT8_SCALE_BYTES, keys.shape[-1]
    scales = keys[..., dim:, :].flatten(-2).unflatten(-1, (block_size, INT8_SCALE_BYTES))
    return torch.cat((keys[..., :dim, :].transpose(-1, -2), scales), dim=-1)


def encode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """rows [..., head_dim] as rows of V.

    In int8 a row's scale is its largest magnitude / 127; a row with infinity or NaN in it reads
    as NaN throughout. In 8-bit floats what is too large, infinity too, becomes the largest number,
    as in saturating conversions of the hardware: torch makes infinity of it in e5m2 (and NaN in
    e4m3 in older versions), and one such key would make NaN of all that comes after it.
    """
    if dtype in FP8:
        limit = torch.finfo(dtype).max
        return rows.clamp(-limit, limit).to(dtype)
    if dtype != torch.int8:
        return rows.to(dtype)
    wide = rows.float()
    scale = (wide.abs().amax(-1) / 127).unsqueeze(-1)
    inverse = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, 1 / scale)
    codes = (wide * inverse).round().nan_to_num(0).to(torch.int8)
    return torch.cat((codes, scale.view(torch.int8)), dim=-1)


def decode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of V as [..., head_dim] of `dtype`."""
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    codes, scale = rows.split((head_dim(rows), INT8_SCALE_BYTES), dim=-1)
    return (codes * scale.contiguous().view(torch.float32)).to(dtype)


def _scale_elements(dtype: torch.dtype) -> int:
    return INT8_SCALE_BYTES if dtype == torch.int8 else 0
