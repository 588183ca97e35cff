"""Matrices in the checkpoint's own bits, in the form of a CPU's kernels or of a GPU's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pagoda.kernels import cpu
from pagoda.kernels.cpu import experts, packed
from pagoda.kernels.triton.products.layouts import kept_here
from pagoda.kernels.triton.products.matrix import GpuMatrix

Tensor = torch.Tensor


def can_pack(device: str) -> bool:
    """Whether weights on `device` can be packed for its kernels.

    A CPU's round activations to 8 bits where weights are quantized, to bf16 where those are; a
    GPU's take them as they are.
    """
    if device == "cpu":
        return cpu.native() is not None
    return bool(kept_here())


def packed_storages(device: str = "cpu") -> frozenset[str]:
    """Storage formats that a packed matrix on `device` keeps bit for bit."""
    if device == "cpu":
        return cpu.packed_storages()
    return kept_here()


def packed_matrix(storage: str, rows: int, columns: int, device: str = "cpu") -> Any:
    """Room for a packed matrix (with `rows`, `columns`, `storage`, `nbytes`); not touched yet."""
    if device == "cpu":
        return cpu.packed_matrix(storage, rows, columns)
    return GpuMatrix(storage, rows, columns, device)


def load_packed(matrix: Any, first_row: int, raw: Tensor) -> None:
    """Pack uint8 [rows, bytes per row] of the matrix's storage format, in parallel."""
    if isinstance(matrix, GpuMatrix):
        matrix.load(first_row, raw)
    else:
        packed.load(matrix, first_row, raw)


def settle_packed(matrix: Any) -> None:
    """Called when all rows of a packed matrix are loaded."""
    if isinstance(matrix, GpuMatrix):
        matrix.settle()


def mapped_packed(matrix: Any, path: Path, offset: int) -> Any:
    """A CPU's packed matrix as this one, with `panels` mapped from a file; OSError where that
    cannot be."""
    return cpu.mapped_matrix(matrix.storage, matrix.rows, matrix.columns, path, offset)


def on_gpu(operand: Any) -> bool:
    """Whether it is a packed matrix of a GPU, or experts with such."""
    matrix = operand.parts[0] if isinstance(operand, experts.PackedExperts) else operand
    return isinstance(matrix, GpuMatrix)


def packed_matmul(
    x: Tensor,
    matrices: Sequence[Any],
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [tokens, columns] times all matrices' rows, side by side, plus bias [rows]; summed in
    fp32, returned in x's dtype or `out_dtype`. What it computes: on a CPU `ref.packed`, on a GPU
    `kernels.triton.products.gemm`."""
    if on_gpu(matrices[0]):
        from pagoda.kernels.triton.products import gemm

        return gemm.matmul(x, matrices, bias, out_dtype)
    return packed.matmul(x, matrices, bias, out_dtype)


def packed_rows(index: Tensor, matrix: Any, dtype: torch.dtype) -> Tensor:
    """Decoded rows of a packed matrix by int64 index [tokens]: [tokens, columns]."""
    if on_gpu(matrix):
        from pagoda.kernels.triton.products import gemm

        return gemm.rows(index, matrix, dtype)
    return packed.rows(index, matrix, dtype)


def packed_experts_matrix(
    storage: str, count: int, rows: int, columns: int, device: str = "cpu"
) -> Any:
    """Room for one part of `count` experts; else as `packed_matrix`."""
    if device == "cpu":
        return experts.matrix(storage, count, rows, columns)
    return GpuMatrix(storage, count * rows, columns, device)


def load_packed_expert(part: Any, expert: int, rows: int, first_row: int, raw: Tensor) -> None:
    """Pack uint8 [any, bytes per row] as rows of an expert that has `rows`, from `first_row` on."""
    if isinstance(part, GpuMatrix):
        part.load(expert * rows + first_row, raw)
    else:
        experts.load(part, expert, rows, first_row, raw)
