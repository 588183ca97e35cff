"""Attention in each storage of K and V, for a step that decodes and for a mixed one."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.kernels.triton import attention
from tools.triton_examples import Example

GROUP, KV_HEADS, BLOCK_SIZE, REQUESTS = 4, 8, 16, 4
QUANTIZED = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


def examples() -> Iterator[Example]:
    for dtype in (torch.bfloat16, torch.float16):
        for dim in (64, 96, 128, 256, 512):
            yield from _both(dtype, dim, dtype)
        for storage in QUANTIZED:
            for dim in (128, 256):
                yield from _both(dtype, dim, storage)
    yield from _both(torch.float32, 128, torch.float32)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for dim in (64, 80):
            call = partial(_encode, dtype, dim)
            yield Example(f"encoder, head {dim}", _name(dtype), call, _declined(dtype))


def _both(dtype: torch.dtype, dim: int, storage: torch.dtype) -> Iterator[Example]:
    for form, tokens in (("decode", REQUESTS), ("mixed", 64)):
        label = f"{form}, head {dim}, KV {_name(storage)}"
        call = partial(_attend, tokens, dtype, dim, storage)
        yield Example(label, _name(dtype), call, _declined(dtype))


def _attend(tokens: int, dtype: torch.dtype, dim: int, storage: torch.dtype) -> None:
    stored = torch.uint8 if storage in QUANTIZED[1:] else storage
    shapes = ops.kv_cache_shapes(2, KV_HEADS, BLOCK_SIZE, dim, stored)
    k_cache, v_cache = (torch.empty(shape, dtype=stored).view(storage) for shape in shapes)
    attention.paged_attention(
        torch.empty(tokens, GROUP * KV_HEADS, dim, dtype=dtype), k_cache, v_cache,
        torch.empty(REQUESTS, 256, dtype=torch.int32),
        torch.empty(REQUESTS + 1, dtype=torch.int32), torch.empty(REQUESTS, dtype=torch.int32),
        scale=0.1, window=1024, sinks=torch.empty(GROUP * KV_HEADS),
    )  # fmt: skip


def _encode(dtype: torch.dtype, dim: int) -> None:
    qkv = torch.empty(48, 3, 16, dim, dtype=dtype)
    starts = torch.empty(REQUESTS + 1, dtype=torch.int32)
    attention.encoder_attention(*qkv.unbind(1), starts, scale=0.1)


def _declined(dtype: torch.dtype):
    return lambda capability: attention.offers(capability, dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
