"""Poisoned caches whose blocks lie apart, as the blocks of several layers make them."""

from math import prod

import torch

from pagoda.kernels import ops


def poisoned(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    """K and V, full of NaN."""
    shapes = ops.kv_cache_shapes(num_blocks, kv_heads, block_size, head_dim, dtype)
    # Four bytes of -1 are a NaN scale.
    poison = -1 if dtype == torch.int8 else torch.nan
    sizes = [prod(shape[1:]) for shape in shapes]
    memory = torch.full((num_blocks, sum(sizes) + 7), poison, dtype=dtype)
    keys, values = memory[:, 3:].split([sizes[0], sum(sizes) + 4 - sizes[0]], dim=1)
    return [
        part[:, :size].unflatten(1, shape[1:])
        for part, size, shape in zip((keys, values), sizes, shapes, strict=True)
    ]
