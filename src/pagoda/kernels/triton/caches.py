"""How a layer's K and V are stored, as kernels read it."""

from typing import NamedTuple

import torch

from pagoda.kernels.ref.kv_cache import head_dim

Tensor = torch.Tensor

_FP8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


class CacheForm(NamedTuple):
    """One layer's caches, 8-bit floats as bytes."""

    k: Tensor
    v: Tensor
    storage: str
    """`plain`, `int8`, `e4m3` or `e5m2`."""
    heads: int
    block_size: int
    dim: int


def cache_form(k_cache: Tensor, v_cache: Tensor) -> CacheForm:
    """The sizes and types of caches [blocks, kv_heads, block_size, row]. ValueError for keys that
    lie dimension by dimension."""
    if k_cache.stride() != v_cache.stride():
        raise ValueError(
            f"Keys lie with strides {k_cache.stride()} and values with {v_cache.stride()}: these "
            "kernels read both token by token."
        )
    heads, block_size = v_cache.shape[1:3]
    dim = head_dim(v_cache)
    if v_cache.dtype == torch.uint8:
        raise ValueError("These kernels do not read q4_0, which only a CPU's do.")
    storage = _FP8.get(v_cache.dtype)
    if storage is not None:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    elif v_cache.dtype == torch.int8:
        storage = "int8"
    return CacheForm(k_cache, v_cache, storage or "plain", heads, block_size, dim)
