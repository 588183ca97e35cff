"""Poisoned caches whose blocks lie apart, as the blocks of several layers make them."""

import torch

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels.ref.kv_cache import row_elements, views


def poisoned(
    num_blocks: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    keys: str = "dimensions",
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, full of NaN."""
    size = kv_heads * block_size * row_elements(head_dim, dtype)
    # Bytes of ones are NaN scales.
    poison = {torch.int8: -1, torch.uint8: 255}.get(dtype, torch.nan)
    memory = torch.full((num_blocks, 2 * size + 7), poison, dtype=dtype)
    layout = KVLayout(keys, block_size)
    parts = memory[:, 3 : 3 + size], memory[:, 3 + size : 3 + 2 * size]
    return views(*parts, layout, kv_heads)
