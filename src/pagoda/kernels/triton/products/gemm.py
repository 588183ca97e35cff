"""Products of activations with quantized weights, which are decoded on the way: `ops.packed_*`.

Few tokens read weights at the speed of memory: one token's products run on plain arithmetic, a few
tokens' on tensor cores, with columns split over programs where rows are few (the parts are added
in their order, so results repeat). Of many tokens the weights are decoded first, some rows at a
time, and multiplied by the library.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.linear import matmul as plain_matmul
from pagoda.kernels.triton.products import scaled
from pagoda.kernels.triton.products.arranged import Activations
from pagoda.kernels.triton.products.decode import (
    columns_of_part,
    load_codes,
    part_of_weights,
    products,
    row_sums,
    scales_of_part,
    scales_of_step,
)  # fmt: skip
from pagoda.kernels.triton.products.forms import Form, linear_form, rows_of_tile
from pagoda.kernels.triton.products.layouts import STEP, for_capability
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import capability, processors

Tensor = torch.Tensor

MOST_FUSED = 256
"""Tokens. Of more, products take so long that to write and read two bytes a weight before them
costs less than what the library's are faster by; on an H100."""
_MOST_WITHOUT_DOT = 8
_DECODED_AT_ONCE = 1 << 25
"""Weights: 64 MiB in two bytes."""
_ROWS_AT_ONCE = 128
"""Rows of these are whole multiples: the library has no fast product for an odd number."""
_DECODED_ROWS = 16
_PROGRAMS_PER_PROCESSOR = 4
_FEWEST_STEPS = 2
_MAX_SPLITS = 16
_CHANGING = ["tokens", "steps", "first", "count", "splits"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""


@triton.jit(do_not_specialize=_CHANGING)
def _one_token(
    x, low, high, scales, minima, supers, bias, out, x_stride, out_stride, tokens, rows, columns,
    steps, LAYOUT: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    # Programs of one tile follow each other: what the first reads, the next find in the cache.
    token, part = (tl.program_id(0) % tokens).to(tl.int64), tl.program_id(1)
    # The last tile is a whole one, too: what another has computes the same.
    begin = tl.minimum((tl.program_id(0) // tokens) * ROWS, rows - ROWS).to(tl.int64)
    row = begin + tl.arange(0, ROWS)
    last = tl.minimum((part + 1) * steps, tl.cdiv(columns, 256))
    total = row_sums(
        x + token * x_stride, low, high, scales, minima, supers, row, rows,
        columns, part * steps, last, LAYOUT, WHOLE,
    )  # fmt: skip
    if SPLIT:
        tl.store(out + (part * tokens + token) * rows + row, total)
    else:
        if bias is not None:
            total += tl.load(bias + row).to(tl.float32)
        tl.store(out + token * out_stride + row, total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=_CHANGING)
def _tiles(
    x, low, high, scales, minima, supers, bias, out, x_stride, out_stride, tokens, rows, columns,
    steps, LAYOUT: tl.constexpr, WHOLE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(tokens, TOKENS)
    part = tl.program_id(1)
    token = ((tl.program_id(0) % tiles) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    row = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)
    real, there = token < tokens, row < rows
    last = tl.minimum((part + 1) * steps, tl.cdiv(columns, 256))
    total = products(
        x + token * x_stride, real, low, high, scales, minima, supers, tl.minimum(row, rows - 1),
        rows, columns, part * steps, last, LAYOUT, WHOLE,
    )  # fmt: skip
    mask = real[:, None] & there[None, :]
    if SPLIT:
        tl.store(out + (part * tokens + token)[:, None] * rows + row[None, :], total, mask)
    else:
        if bias is not None:
            total += tl.load(bias + row, there, other=0).to(tl.float32)[None, :]
        place = out + token[:, None] * out_stride + row[None, :]
        tl.store(place, total.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=_CHANGING)
def _add_parts(partial, bias, out, out_stride, rows, splits, BLOCK: tl.constexpr):
    token, tokens = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(0, splits):
        total += tl.load(partial + (part * tokens + token) * rows + row, there, other=0)
    if bias is not None:
        total += tl.load(bias + row, there, other=0).to(tl.float32)
    tl.store(out + token * out_stride + row, total.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=_CHANGING)
def _decode_rows(
    index, low, high, scales, minima, supers, out, first, count, rows, columns,
    LAYOUT: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, ARRANGED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = place < count
    row = first + place
    if index is not None:
        row = tl.load(index + place, there, other=0).to(tl.int32)
    row = tl.minimum(row, rows - 1)
    step = tl.program_id(1)
    below = load_codes(low, row, step, columns, LAYOUT, WHOLE)
    above = below
    if high is not None:
        above = load_codes(high, row, step, columns, LAYOUT, WHOLE)
    if LAYOUT.in_pairs:
        known = scales_of_step(scales, minima, supers, step, row, rows, columns, LAYOUT)
    for part in tl.static_range(4):
        if not LAYOUT.in_pairs:
            known = scales_of_part(scales, minima, supers, step, part, row, rows, columns, LAYOUT)
        weights = part_of_weights(below, above, known, part, LAYOUT, tl.float32)
        wide, column = columns, columns_of_part(step, part, LAYOUT)
        inside = there[:, None] & (column < columns)[None, :]
        if ARRANGED:  # activations have zeros behind the last column
            wide, column = tl.num_programs(1) * 256, step * 256 + part * 64 + tl.arange(0, 64)
            inside = there[:, None]
        tl.store(out + place.to(tl.int64)[:, None] * wide + column[None, :],
                 weights.to(out.dtype.element_ty), inside)  # fmt: skip


def matmul(
    x: Tensor,
    matrices: Sequence[GpuMatrix],
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """As `ops.packed_matmul`; weights are rounded to x's type, except for one token's products."""
    tokens, rows = x.shape[0], sum(matrix.rows for matrix in matrices)
    out = torch.empty((tokens, rows), dtype=out_dtype or x.dtype, device=x.device)
    given, start = Activations(x), 0
    for matrix in matrices:
        part = slice(start, start + matrix.rows)
        added = None if bias is None else bias[part]
        if tokens and matrix.rows:
            _multiply(given, matrix, added, out[:, part])
        start += matrix.rows
    return out


def rows(index: Tensor, matrix: GpuMatrix, dtype: torch.dtype) -> Tensor:
    """As `ops.packed_rows`."""
    if matrix.layout.codes == "plain":
        return matrix.low[index].to(dtype)
    return _decoded(matrix, dtype, 0, len(index), index=index)


def decode(matrix: GpuMatrix, dtype: torch.dtype, first: int, count: int) -> Tensor:
    """Rows from `first` on: [count, columns]."""
    if matrix.layout.codes == "plain":
        return matrix.low[first : first + count].to(dtype)
    return _decoded(matrix, dtype, first, count)


def kind_of(matrix: GpuMatrix, x: Tensor) -> dict[str, Any]:
    """What kernels on the GPU of x, of any shape, are compiled for."""
    whole = matrix.columns % STEP == 0
    return {"LAYOUT": for_capability(matrix.layout, capability(x)), "WHOLE": whole}


def has_dot(x: Tensor) -> bool:
    """Whether Triton's products run on tensor cores, which round fp32, for x of any shape."""
    return capability(x) >= 80 and x.dtype != torch.float32


def _multiply(given: Activations, matrix: GpuMatrix, bias: Tensor | None, out: Tensor) -> None:
    x, tokens = given.x, given.x.shape[0]
    if matrix.layout.codes == "plain":
        wide = x if matrix.low.dtype == x.dtype else x.to(matrix.low.dtype)
        added = None if bias is None else bias.to(matrix.low.dtype)
        out.copy_(plain_matmul(wide, matrix.low, added, out.dtype if out.dtype == torch.float32
                               else None))  # fmt: skip
    elif tokens <= (1 if has_dot(x) else _MOST_WITHOUT_DOT):
        tile = rows_of_tile(matrix.layout, x.dtype, matrix.rows)
        _launch(Form(1, tile, 4, 2), x, matrix, bias, out)
    elif scaled.declines(x, matrix, out.dtype) is None:
        out.copy_(scaled.matmul(x, matrix, bias))
    elif has_dot(x) and tokens <= MOST_FUSED:
        form = linear_form(tokens, capability(x))
        _launch(form, given.arranged(matrix.layout), matrix, bias, out)
    else:
        x = given.arranged(matrix.layout)
        step = max(1, _DECODED_AT_ONCE // matrix.columns // _ROWS_AT_ONCE) * _ROWS_AT_ONCE
        for first in range(0, matrix.rows, step):
            part = slice(first, min(first + step, matrix.rows))
            weight = _decoded(matrix, x.dtype, first, part.stop - first, arranged=True)
            added = None if bias is None else bias[part].to(x.dtype)
            _by_library(x, weight, added, out[:, part])


def _by_library(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if out.dtype != x.dtype:
        out.copy_(plain_matmul(x, weight, bias, out.dtype))
    elif bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _launch(cut: Form, x: Tensor, matrix: GpuMatrix, bias: Tensor | None, out: Tensor) -> None:
    """For more than one token, x is arranged."""
    tokens, total = len(x), triton.cdiv(matrix.columns, STEP)
    tiles = triton.cdiv(tokens, cut.tokens) * triton.cdiv(matrix.rows, cut.rows)
    steps, splits = _split(tiles, total, processors(x))
    target, stride = out, out.stride(0)
    if splits > 1:
        size = (splits, tokens, matrix.rows)
        target = torch.empty(size, dtype=torch.float32, device=x.device)
    sizes = {**kind_of(matrix, x), "ROWS": cut.rows, "SPLIT": splits > 1}
    if cut.tokens > 1:
        sizes["TOKENS"] = cut.tokens
    (_one_token if cut.tokens == 1 else _tiles)[(tiles, splits)](
        x, *matrix.tensors, bias, target, x.stride(0), stride, tokens, matrix.rows, matrix.columns,
        steps, **sizes, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    if splits > 1:
        _add_parts[(tokens, triton.cdiv(matrix.rows, 256))](
            target, bias, out, stride, matrix.rows, splits, BLOCK=256, num_warps=2
        )


def _split(tiles: int, total: int, count: int) -> tuple[int, int]:
    """(steps of a part, parts) of `total` steps of columns, for a GPU of `count` processors."""
    wanted = max(1, min(_MAX_SPLITS, _PROGRAMS_PER_PROCESSOR * count // tiles))
    steps = max(min(_FEWEST_STEPS, total), triton.cdiv(total, wanted))
    return steps, triton.cdiv(total, steps)


def _decoded(
    matrix: GpuMatrix,
    dtype: torch.dtype,
    first: int,
    count: int,
    *,
    index: Tensor | None = None,
    arranged: bool = False,
) -> Tensor:
    """Rows from `first` on, or those of `index`: [count, columns], or whole steps in the order of
    arranged activations."""
    steps = triton.cdiv(matrix.columns, STEP)
    columns = steps * STEP if arranged else matrix.columns
    out = torch.empty((count, columns), dtype=dtype, device=matrix.low.device)
    if count and columns:
        tile = _DECODED_ROWS if count > 1 else 1
        _decode_rows[(triton.cdiv(count, tile), steps)](
            index, *matrix.tensors, out, first, count, matrix.rows, matrix.columns,
            **kind_of(matrix, out), ROWS=tile, ARRANGED=arranged, num_warps=4,
        )  # fmt: skip
    return out
