"""K and V of one layer in the paged cache, as `KVLayout` says.

Both are tensors [num_blocks, kv_heads, block_size, row], and the same one where values are keys: a
row is one token's head_dim elements of one head, in int8 with their fp32 scale behind them. Strides
say how keys lie. Dimension by dimension (a stride of 1 over tokens) they are scored as vectors of
one dimension each; in int8 the fp32 scales [block_size] then lie behind all dimensions, where no
strides reach them. Elements of torch.uint8 are the bytes of q4_0 (`q4`), whose scales lie behind
those of all tokens in either layout.
"""

from typing import NamedTuple

import torch

from pagoda.core.kvcache.spec import INT8_SCALE_BYTES, Q4_SCALE_BYTES, KVLayout, row_bytes
from pagoda.kernels.ref import q4

Tensor = torch.Tensor
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class KVScales(NamedTuple):
    """What K and V of each head are divided by before they are stored in 8-bit floats, and
    multiplied with when they are read; fp32 [kv_heads]."""

    k: Tensor
    v: Tensor

    @classmethod
    def ones(cls, kv_heads: int, device: torch.device | str) -> "KVScales":
        """[kv_heads] each."""
        return cls(*(torch.ones(kv_heads, device=device) for _ in range(2)))


def views(keys: Tensor, values: Tensor, layout: KVLayout, kv_heads: int) -> tuple[Tensor, Tensor]:
    """K and V that lie in rows [num_blocks, kv_heads * block_size * row] any stride apart; of the
    same rows they are one tensor."""
    k, v = (rows.unflatten(1, (kv_heads, layout.block_size, -1)) for rows in (keys, values))
    if layout.keys == "dimensions":
        k = keys.unflatten(1, (kv_heads, -1, layout.block_size)).transpose(2, 3)
    return k, k if values is keys else v


def row_elements(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` that a head of one token takes in a cache: a row of int8 ends in its
    scale, and one of q4_0 is bytes of two numbers and scales."""
    if dtype == torch.uint8:
        return row_bytes(head_dim, "q4_0")
    return head_dim + (INT8_SCALE_BYTES if dtype == torch.int8 else 0)


def head_dim(v_cache: Tensor) -> int:
    """The size of a head in v_cache [blocks, kv_heads, block_size, row], whose rows may end in a
    scale."""
    if v_cache.dtype == torch.uint8:
        return q4.head_dim(v_cache.shape[-1])
    return v_cache.shape[-1] - row_elements(0, v_cache.dtype)


def store(rows: Tensor, cache: Tensor, blocks: Tensor, offsets: Tensor) -> None:
    """fp32 K or V [tokens, kv_heads, head_dim] to the offsets [tokens] of blocks [tokens]."""
    if cache.dtype == torch.uint8:
        q4.store(rows, cache, blocks, offsets)
        return
    coded, dim, block_size = encode(rows, cache.dtype), rows.shape[-1], cache.shape[2]
    if not _scales_apart(cache):
        cache[blocks, :, offsets] = coded
        return
    cache[blocks, :, offsets, :dim] = coded[..., :dim]
    places = dim * block_size + offsets[:, None] * INT8_SCALE_BYTES
    places = places + torch.arange(INT8_SCALE_BYTES, device=places.device)
    heads = cache.transpose(2, 3).view(*cache.shape[:2], -1)
    heads[blocks[:, None], :, places] = coded[..., dim:].transpose(1, 2)


def take(cache: Tensor, blocks: Tensor, heads: slice) -> Tensor:
    """Rows of blocks [n], each with its scales behind it: [n, heads, block_size, row]."""
    if cache.dtype == torch.uint8:
        codes, halves = q4.take(cache, blocks, heads)
        return torch.cat((codes, halves.flatten(3)), dim=3)
    if cache.dtype in FP8:  # which torch gathers nowhere
        return cache.view(torch.uint8)[:, heads].index_select(0, blocks).view(cache.dtype)
    taken = cache[:, heads]
    if not _scales_apart(cache):
        return taken.index_select(0, blocks)
    columns = taken.transpose(2, 3).index_select(0, blocks)
    dim, block_size = columns.shape[2] - INT8_SCALE_BYTES, columns.shape[3]
    scales = columns[:, :, dim:].flatten(2).unflatten(2, (block_size, INT8_SCALE_BYTES))
    return torch.cat((columns[:, :, :dim].transpose(2, 3), scales), dim=3)


def encode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """rows [..., head_dim] as rows of a cache.

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
    """Rows that `take` gave as [..., head_dim] of `dtype`."""
    if rows.dtype == torch.uint8:
        half = head_dim(rows) // 2
        halves = rows[..., half:].unflatten(-1, (-1, Q4_SCALE_BYTES))
        return q4.decode(rows[..., :half], halves).to(dtype)
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    codes, scale = rows.split((head_dim(rows), INT8_SCALE_BYTES), dim=-1)
    # Copied, for where it lies need not be a place for an fp32 number.
    scale = scale.clone(memory_format=torch.contiguous_format)
    decoded: Tensor = codes * scale.view(torch.float32)
    return decoded.to(dtype)


def _scales_apart(cache: Tensor) -> bool:
    return cache.dtype == torch.int8 and cache.stride(3) != 1
