"""How one token's K or V of one head lies in the cache: as it is, or in int8 with its scale."""

import torch

from pagoda.core.kvcache.spec import INT8_SCALE_BYTES

Tensor = torch.Tensor


def row_elements(head_dim: int, dtype: torch.dtype) -> int:
    return head_dim + (INT8_SCALE_BYTES if dtype == torch.int8 else 0)


def head_dim(cache: Tensor) -> int:
    return cache.shape[-1] - row_elements(0, cache.dtype)


def encode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """rows [..., head_dim] as the cache holds them.

    In int8 a row's scale is its largest magnitude / 127; a row with infinity or NaN in it reads
    as NaN throughout.
    """
    if dtype != torch.int8:
        return rows.to(dtype)
    wide = rows.float()
    scale = (wide.abs().amax(-1) / 127).unsqueeze(-1)
    inverse = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, 1 / scale)
    codes = (wide * inverse).round().nan_to_num(0).to(torch.int8)
    return torch.cat((codes, scale.view(torch.int8)), dim=-1)


def decode(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the cache as [..., head_dim] of `dtype`."""
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    codes, scale = rows.split((head_dim(rows), INT8_SCALE_BYTES), dim=-1)
    return (codes * scale.contiguous().view(torch.float32)).to(dtype)
