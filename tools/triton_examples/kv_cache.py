"""The store of K and V in each storage."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.kernels.triton import kv_cache
from tools.triton_examples import Example

HEADS, KV_HEADS, BLOCK_SIZE, TOKENS = 8, 2, 16, 5


def examples() -> Iterator[Example]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for storage in (dtype, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
            for dim in (128, 512):
                name = str(dtype).removeprefix("torch.")
                label = f"rotary, norms, head {dim}, KV {str(storage).removeprefix('torch.')}"
                call = partial(_store, dtype, dim, storage)
                yield Example(label, name, call, partial(_declined, dtype))


def _declined(dtype: torch.dtype, capability: int) -> str | None:
    return kv_cache.offers(capability, dtype)


def _store(dtype: torch.dtype, dim: int, storage: torch.dtype) -> None:
    stored = torch.uint8 if storage.itemsize == 1 and storage != torch.int8 else storage
    shapes = ops.kv_cache_shapes(2, KV_HEADS, BLOCK_SIZE, dim, stored)
    k, v = (torch.empty(shape, dtype=stored).view(storage) for shape in shapes)
    norm = torch.empty(dim)
    index = torch.empty(TOKENS, dtype=torch.int64)
    kv_cache.rotary_store(
        torch.empty(TOKENS, (HEADS + 2 * KV_HEADS) * dim, dtype=dtype), index,
        torch.empty(64, dim), k, v, index, ops.HeadNorms(norm, norm, 1e-6),
    )  # fmt: skip
