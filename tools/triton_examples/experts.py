"""Experts in the storage formats that their models are published in, for few tokens and many."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.kernels.ref.experts import Grouped
from pagoda.kernels.triton.products import experts
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import offers
from tools.triton_examples import Example
from tools.triton_examples.rowwise import name

EXPERTS, TOP_K, HIDDEN, SIZE = 32, 4, 2048, 768
STORAGES = ("plain", "FP4", "FP8", "INT4", "MXFP4", "Q4_K", "Q6_K")
ALONE, SMALL, LARGE, BETWEEN = 4, 64, 2048, (256, 512)
"""Tokens: no tiles, the smallest, the largest, and those between."""


def examples() -> Iterator[Example]:
    for storage in STORAGES:
        yield _mixture(ALONE, storage, torch.bfloat16)
        yield _mixture(LARGE, storage, torch.bfloat16)
    for storage in ("plain", "FP8", "MXFP4"):
        yield _mixture(SMALL, storage, torch.bfloat16)
    for tokens in (SMALL, *BETWEEN):
        yield _mixture(tokens, "Q6_K", torch.bfloat16)  # its codes take most registers
    for tokens in (ALONE, SMALL, LARGE):
        yield _mixture(tokens, "plain", torch.float16)
    yield _mixture(ALONE, "MXFP4", torch.float16)
    yield _mixture(ALONE, "plain", torch.float32)


def _mixture(tokens: int, storage: str, dtype: torch.dtype) -> Example:
    call = partial(_mix, tokens, storage, dtype)
    declined = partial(_declined, tokens == ALONE, dtype)
    return Example(f"{tokens} tokens, {storage}", name(dtype), call, declined)


def _declined(alone: bool, dtype: torch.dtype, capability: int) -> str | None:
    if not alone and capability < 80:
        return "without tensor cores, many tokens are the library's"
    return offers(capability, dtype)


def _mix(tokens: int, storage: str, dtype: torch.dtype) -> None:
    x = torch.empty(tokens, HIDDEN, dtype=dtype)
    ids, weights = torch.empty(tokens, TOP_K, dtype=torch.int64), torch.empty(tokens, TOP_K)
    numbers = torch.empty(tokens * TOP_K, dtype=torch.int32)
    groups = Grouped(numbers[:EXPERTS], numbers[:EXPERTS], numbers)
    routed = ops.Routed(ids, weights, None if tokens == ALONE else groups)
    up, down = _experts(storage, 2, SIZE, HIDDEN, dtype), _experts(storage, 1, HIDDEN, SIZE, dtype)
    gating = ops.Gating(1.702, 7.0) if storage == "MXFP4" else ops.Gating()
    experts.mix(x, routed, up, down, gating, beside=ops.Beside(x, x[:, :1]))


def _experts(storage: str, parts: int, rows: int, columns: int, dtype: torch.dtype):
    bias = torch.empty(EXPERTS, parts * rows, dtype=dtype)
    if storage == "plain":
        return ops.PlainExperts(torch.empty(EXPERTS, parts * rows, columns, dtype=dtype), bias)
    matrices = tuple(GpuMatrix(storage, EXPERTS * rows, columns, "cpu") for _ in range(parts))
    return ops.PackedExperts(matrices, rows, EXPERTS, bias)
