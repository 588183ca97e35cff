"""Products with weights in every storage format, for one token and for many."""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels.triton import gemm, scaled
from pagoda.kernels.triton.layouts import STORAGES
from pagoda.kernels.triton.matrix import GpuMatrix
from pagoda.kernels.triton.target import offers
from tools.triton_examples import Example

ROWS, COLUMNS = 4096, 4096
ODD_COLUMNS = 2880
TOKENS = {"one token": 1, "16 tokens": 16, "64 tokens": 64, "512 tokens": 512}


def examples() -> Iterator[Example]:
    for storage in sorted(STORAGES):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = str(dtype).removeprefix("torch.")
            for label, tokens in TOKENS.items():
                if tokens == 1 or dtype != torch.float32:  # those are decoded and left to torch
                    call = partial(_multiply, tokens, storage, COLUMNS, dtype)
                    declined = partial(_declined, tokens, dtype)
                    yield Example(f"{label}, {storage}", name, call, declined)
            call = partial(_rows, storage, dtype)
            yield Example(f"rows, {storage}", name, call, partial(_declined, 1, dtype))
    call = partial(_quantize, torch.bfloat16)
    yield Example("rows to fp8", "bfloat16", call, partial(_declined, 1, torch.bfloat16))
    for storage in ("Q4_0", "Q5_0", "MXFP4"):
        for label in ("one token", "16 tokens"):
            call = partial(_multiply, TOKENS[label], storage, ODD_COLUMNS, torch.float16)
            declined = partial(_declined, TOKENS[label], torch.float16)
            yield Example(f"{label}, {storage} of {ODD_COLUMNS}", "float16", call, declined)


def _declined(tokens: int, dtype: torch.dtype, capability: int) -> str | None:
    if tokens > 1 and capability < 80:
        return "without tensor cores, more than a token's weights are decoded or read again"
    return offers(capability, dtype)


def _multiply(tokens: int, storage: str, columns: int, dtype: torch.dtype) -> None:
    matrix = GpuMatrix(storage, ROWS, columns, "cpu")
    gemm.matmul(torch.empty(tokens, columns, dtype=dtype), [matrix], torch.empty(ROWS, dtype=dtype))


def _rows(storage: str, dtype: torch.dtype) -> None:
    matrix = GpuMatrix(storage, ROWS, COLUMNS, "cpu")
    gemm.rows(torch.empty(TOKENS["16 tokens"], dtype=torch.int64), matrix, dtype)
    gemm.decode(matrix, dtype, 0, ROWS)


def _quantize(dtype: torch.dtype) -> None:
    scaled.quantized(torch.empty(TOKENS["512 tokens"], COLUMNS, dtype=dtype), 4)
