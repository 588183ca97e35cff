"""Attention in each storage of K and V, for a step that decodes and for a mixed one."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from pagoda.kernels.ref.kv_cache import FP8, KVScales, row_elements
from pagoda.kernels.triton import attention
from tools.triton_examples import Example
from tools.triton_examples.rowwise import declined, in_each_type, name

GROUP, KV_HEADS, BLOCK_SIZE, REQUESTS, TOKENS = 4, 8, 64, 4, 64


def examples() -> Iterator[Example]:
    for dtype, dims in ((torch.bfloat16, (64, 128, 256, 512)), (torch.float16, (128, 256))):
        for dim in dims:
            yield from _both(dtype, dim, dtype)
    yield from _both(torch.float32, 128, torch.float32)
    for storage in (torch.int8, *FP8):
        yield from _both(torch.bfloat16, 128, storage)
    for storage in (torch.int8, torch.float8_e4m3fn):
        yield from _both(torch.float16, 128, storage)
    for form, tokens in (("decode", REQUESTS), ("mixed", TOKENS)):
        call = partial(_attend, tokens, torch.bfloat16, 256, torch.bfloat16, cap=50.0)
        declines = partial(declined, torch.bfloat16)
        yield Example(f"{form}, head 256, capped logits", "bfloat16", call, declines)
    call = partial(_attend_to_images, torch.float16)
    declines = partial(declined, torch.float16)
    yield Example("mixed, head 128, chunks and images", "float16", call, declines)
    yield from in_each_type("encoder, head 80", partial(_encode, 80))


def _both(dtype: torch.dtype, dim: int, storage: torch.dtype) -> Iterator[Example]:
    for form, tokens in (("decode", REQUESTS), ("mixed", TOKENS)):
        label = f"{form}, head {dim}, KV {name(storage)}"
        call = partial(_attend, tokens, dtype, dim, storage)
        yield Example(label, name(dtype), call, partial(declined, dtype))


def _attend_to_images(dtype: torch.dtype) -> None:
    sees_until = torch.empty(TOKENS, dtype=torch.int32)
    _attend(TOKENS, dtype, 128, dtype, chunked=True, sees_until=sees_until)


def _attend(tokens: int, dtype: torch.dtype, dim: int, storage: torch.dtype, **how: Any) -> None:
    """With a window and sinks, which cost more than they take away."""
    row = row_elements(dim, storage)
    k_cache, v_cache = torch.empty(2, 2, KV_HEADS, BLOCK_SIZE, row, dtype=storage)
    kv_scales = KVScales.ones(KV_HEADS, "cpu") if storage == torch.float8_e4m3fn else None
    attention.paged_attention(
        torch.empty(tokens, GROUP * KV_HEADS, dim, dtype=dtype), k_cache, v_cache,
        torch.empty(REQUESTS, 256, dtype=torch.int32),
        torch.empty(REQUESTS + 1, dtype=torch.int32), torch.empty(REQUESTS, dtype=torch.int32),
        scale=0.1, window=1024, sinks=torch.empty(GROUP * KV_HEADS),
        kv_scales=kv_scales, **how,
    )  # fmt: skip


def _encode(dim: int, dtype: torch.dtype) -> None:
    qkv = torch.empty(48, 3, 16, dim, dtype=dtype)
    starts = torch.empty(REQUESTS + 1, dtype=torch.int32)
    attention.encoder_attention(*qkv.unbind(1), starts, scale=0.1)
