"""Normalization of rows: by root mean square (arXiv 1910.07467), by mean and variance
(1607.06450).

A program holds whole rows in registers, so that each is read and written once.
"""

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

# Elements that a program works on: rows of small heads share one.
_ELEMENTS = 2048
_CHANGING = ["rows"]
"""Numbers that steps differ in: a kernel is not compiled anew for some of them."""


@triton.jit
def _rms_scaled(x, size, eps):
    """fp32 x [rows, columns], whose columns past `size` are zero, over each row's rms."""
    return x * tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)[:, None]


@triton.jit
def _place(rows, size, block_rows: tl.constexpr, block: tl.constexpr):
    """(int64 rows [block_rows, 1], columns [1, block], which of them exist)."""
    row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)[:, None]
    column = tl.arange(0, block)[None, :]
    return row, column, (row < rows) & (column < size)


@triton.jit(do_not_specialize=_CHANGING)
def _rms_norm(
    x, weight, out, rows, size, stride, out_stride, eps, block_rows: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(rows, size, block_rows, block)
    wide = tl.load(x + row * stride + column, there, other=0.0).to(tl.float32)
    weights = tl.load(weight + column, column < size, other=0.0).to(tl.float32)
    result = _rms_scaled(wide, size, eps) * weights
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=_CHANGING)
def _add_rms_norm(
    x, residual, weight, added, out, rows, size, stride, residual_stride, eps, scale,
    norms_added: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(rows, size, block_rows, block)
    total_type = residual.dtype.element_ty
    wide = tl.load(x + row * stride + column, there, other=0.0).to(tl.float32)
    at = residual + row * residual_stride + column
    before = tl.load(at, there, other=0.0).to(tl.float32)
    if norms_added:
        weights = tl.load(added + column, column < size, other=0.0).to(tl.float32)
        normed = (_rms_scaled(wide, size, eps) * weights).to(total_type).to(tl.float32)
        total = ((normed + before).to(total_type).to(tl.float32) * scale).to(total_type)
    else:
        total = (wide + before).to(total_type)
    tl.store(at, total, there)
    weights = tl.load(weight + column, column < size, other=0.0).to(tl.float32)
    result = _rms_scaled(total.to(tl.float32), size, eps) * weights
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=_CHANGING)
def _gated_rms_norm(
    x, gate, weight, out, rows, size, heads, stride, gate_stride, eps,
    block_rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(rows, size, block_rows, block)
    token, inside = row // heads, (row % heads) * size + column
    wide = tl.load(x + token * stride + inside, there, other=0.0).to(tl.float32)
    gates = tl.load(gate + token * gate_stride + inside, there, other=0.0).to(tl.float32)
    weights = tl.load(weight + column, column < size, other=0.0).to(tl.float32)
    result = _rms_scaled(wide, size, eps) * weights * gates * tl.sigmoid(gates)
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=_CHANGING)
def _layer_norm(
    x, residual, weight, bias, out, rows, size, stride, residual_stride, eps,
    adds: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(rows, size, block_rows, block)
    total = tl.load(x + row * stride + column, there, other=0.0).to(tl.float32)
    if adds:
        more = tl.load(residual + row * residual_stride + column, there, other=0.0)
        total += more.to(tl.float32)
    centered = tl.where(there, total - (tl.sum(total, axis=1) / size)[:, None], 0.0)
    weights = tl.load(weight + column, column < size, other=0.0).to(tl.float32)
    biases = tl.load(bias + column, column < size, other=0.0).to(tl.float32)
    result = _rms_scaled(centered, size, eps) * weights + biases
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `kernels.ops.rms_norm`."""
    flat = _rows_of(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = flat.shape
    grid, sizes = _launch(rows, size)
    _rms_norm[grid](flat, weight, out, rows, size, flat.stride(0), size, eps, **sizes)
    return out


def norm_in_place(x: Tensor, weight: Tensor, eps: float) -> None:
    """As `kernels.ops.norm_in_place`."""
    rows, size = x.shape
    grid, sizes = _launch(rows, size)
    _rms_norm[grid](x, weight, x, rows, size, x.stride(0), x.stride(0), eps, **sizes)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    added: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """As `kernels.ops.add_rms_norm`; `residual` is overwritten by the sum."""
    flat, sums = _rows_of(x), residual.flatten(0, -2)
    assert sums.data_ptr() == residual.data_ptr() and sums.stride(1) == 1
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = flat.shape
    grid, sizes = _launch(rows, size)
    _add_rms_norm[grid](
        flat, sums, weight, weight if added is None else added, out, rows, size,
        flat.stride(0), sums.stride(0), eps, scale, norms_added=added is not None, **sizes,
    )  # fmt: skip
    return out, residual


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `kernels.ops.gated_rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = weight.shape[0]
    heads = x.shape[1] // size
    rows = x.shape[0] * heads
    grid, sizes = _launch(rows, size)
    _gated_rms_norm[grid](
        x, gate, weight, out, rows, size, heads, x.stride(0), gate.stride(0), eps, **sizes
    )
    return out


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor:
    """As `kernels.ops.layer_norm`."""
    flat = _rows_of(x)
    more = flat if residual is None else _rows_of(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = flat.shape
    grid, sizes = _launch(rows, size)
    _layer_norm[grid](
        flat, more, weight, bias, out, rows, size, flat.stride(0), more.stride(0), eps,
        adds=residual is not None, **sizes,
    )  # fmt: skip
    return out


def _rows_of(x: Tensor) -> Tensor:
    """x as [rows, size] with neighbours in memory, copied only where that needs it."""
    flat = x.flatten(0, -2) if x.dim() > 1 else x[None]
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _launch(rows: int, size: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and the sizes of a program's tile."""
    block = triton.next_power_of_2(size)
    block_rows = max(
        1, _ELEMENTS // block
    )  # of few rows, too: theirs would be kernels of their own
    # 16 elements a thread: two loads of 16 bytes of a 2-byte type, four of fp32.
    num_warps = min(16, max(1, block_rows * block // 512))
    return (triton.cdiv(rows, block_rows),), {
        "block_rows": block_rows,
        "block": block,
        "num_warps": num_warps,
    }
