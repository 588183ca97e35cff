"""The store of K and V in each storage."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels.attention.backend import HeadNorms
from pagoda.kernels.ref.kv_cache import FP8, KVScales, row_elements
from pagoda.kernels.triton import kv_cache
from tools.triton_examples import Example
from tools.triton_examples.rowwise import TYPES, declined, name

HEADS, KV_HEADS, BLOCK_SIZE, DIM, TOKENS = 8, 2, 64, 256, 5


def examples() -> Iterator[Example]:
    for dtype in TYPES:
        for storage in (dtype, torch.int8, *FP8):
            label = f"rotary, norms, head {DIM}, KV {name(storage)}"
            call = partial(_store, dtype, storage)
            yield Example(label, name(dtype), call, partial(declined, dtype))
        call = partial(_store_unrotated, dtype)
        yield Example("scales, values are keys", name(dtype), call, partial(declined, dtype))


def _store(dtype: torch.dtype, storage: torch.dtype) -> None:
    row = row_elements(DIM, storage)
    k, v = torch.empty(2, 2, KV_HEADS, BLOCK_SIZE, row, dtype=storage)
    norm = torch.empty(DIM)
    index = torch.empty(TOKENS, dtype=torch.int64)
    scales = KVScales.ones(KV_HEADS, "cpu") if storage == torch.float8_e4m3fn else None
    kv_cache.rotary_store(
        torch.empty(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, dtype=dtype), index,
        torch.empty(64, DIM), k, v, index, HeadNorms(norm, norm, 1e-6),
        kv_scales=scales,
    )  # fmt: skip


def _store_unrotated(dtype: torch.dtype) -> None:
    k, v = torch.empty(2, 2, KV_HEADS, BLOCK_SIZE, DIM, dtype=dtype)
    norm = torch.empty(DIM)
    index = torch.empty(TOKENS, dtype=torch.int64)
    kv_cache.rotary_store(
        torch.empty(TOKENS, (HEADS + KV_HEADS) * DIM, dtype=dtype), index, None, k, v, index,
        HeadNorms(norm, norm, 1e-6, True), torch.empty(64), values_are_keys=True,
    )  # fmt: skip
