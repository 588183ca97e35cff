"""Products with weights in every storage format, for one token and for many.

Decoders give fp32 whatever the type of activations and the tile. So every format is compiled in one
type for one token, and for many tokens unless other formats share its code; typical formats show
the other types and tiles.
"""

from collections.abc import Iterator
from functools import partial

import torch

from pagoda.kernels.triton.products import gemm, scaled
from pagoda.kernels.triton.products.layouts import STORAGES
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import offers
from tools.triton_examples import Example
from tools.triton_examples.rowwise import TYPES, name

ROWS, COLUMNS = 4096, 4096
MANY_ROWS, ODD_COLUMNS = 65_536, 2880
TYPICAL = ("FP8", "Q6_K")
"""Codes in one plane and in two; the latter take most registers."""
AS_ANOTHER = ("INT8", "IQ4_NL", "Q4_0", "Q4_1", "Q5_0")
"""Codes as in Q8_0, IQ4_XS, INT4, UINT4 and Q5_1."""
OF_WHOLE_ROWS = ("FP8", "INT8")
"""Published with a scale for each row."""
SMALL, LARGE = 16, 256
"""Tokens, for the smallest tile and the largest."""


def examples() -> Iterator[Example]:
    for storage in sorted(STORAGES):
        yield _product(1, storage, torch.float16)
        yield _decoder("rows", storage, torch.float16)
        if storage not in AS_ANOTHER:
            yield _product(LARGE, storage, torch.bfloat16)
    for storage in ("INT4", "MXFP4", "Q4_K", *TYPICAL):
        yield _product(SMALL, storage, torch.bfloat16)
    for storage in TYPICAL:
        for dtype in TYPES:
            yield _product(1, storage, dtype)
            yield _decoder("rows", storage, dtype)
    for tokens in (SMALL, LARGE):
        yield _product(tokens, "Q6_K", torch.float16)
    for tokens in (32, 64):
        yield _product(tokens, "Q6_K", torch.bfloat16)
    for dtype in TYPES:
        yield _product(1, "FP8", dtype, rows=MANY_ROWS)
        yield _decoder("all rows", "FP8", dtype)
    yield _product(LARGE, "FP8", torch.bfloat16, rows=MANY_ROWS)
    for storage in ("Q4_0", "Q5_0", "MXFP4"):
        for tokens in (1, SMALL):
            yield _product(tokens, storage, torch.float16, columns=ODD_COLUMNS)
    for label, quantized in (("rows", scaled.quantized), ("groups", scaled.quantized_groups)):
        call = partial(quantized, torch.empty(LARGE, COLUMNS, dtype=torch.bfloat16))
        yield Example(f"{label} to fp8", "bfloat16", call, _declines_fp8)


def _product(
    tokens: int, storage: str, dtype: torch.dtype, rows: int = ROWS, columns: int = COLUMNS
) -> Example:
    """Few rows are cut along their columns too."""
    label = f"{tokens} x {columns} x {rows}, {storage}"
    call = partial(_multiply, tokens, storage, rows, columns, dtype)
    return Example(label, name(dtype), call, partial(_declined, tokens, dtype))


def _decoder(label: str, storage: str, dtype: torch.dtype) -> Example:
    call = partial(_rows if label == "rows" else _all_rows, storage, dtype)
    return Example(f"{label}, {storage}", name(dtype), call, partial(offers, dtype=dtype))


def _declined(tokens: int, dtype: torch.dtype, capability: int) -> str | None:
    if tokens > 1 and capability < 80:
        return "without tensor cores, more than a token's weights are decoded or read again"
    return offers(capability, dtype)


def _declines_fp8(capability: int) -> str | None:
    return None if capability >= 89 else "fp8 tensor cores begin with sm_89"


def _multiply(tokens: int, storage: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    matrix = GpuMatrix(storage, rows, columns, "cpu")
    if storage in OF_WHOLE_ROWS and matrix.scales is not None:
        matrix.scales.zero_()
        matrix.settle()
    gemm.matmul(torch.empty(tokens, columns, dtype=dtype), [matrix], torch.empty(rows, dtype=dtype))


def _rows(storage: str, dtype: torch.dtype) -> None:
    index = torch.empty(16, dtype=torch.int64)
    gemm.rows(index, GpuMatrix(storage, ROWS, COLUMNS, "cpu"), dtype)


def _all_rows(storage: str, dtype: torch.dtype) -> None:
    gemm.decode(GpuMatrix(storage, ROWS, COLUMNS, "cpu"), dtype, 0, ROWS)
