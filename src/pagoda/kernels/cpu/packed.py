"""Products with packed matrices: pointers of torch tensors for the native kernels."""

from collections.abc import Sequence
from typing import Any

import torch

from pagoda.kernels import cpu
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor


def load(matrix: Any, first_row: int, raw: Tensor) -> None:
    """Pack uint8 [rows, bytes per row] as the matrix's rows from `first_row` on."""
    raw = raw if raw.stride(1) == 1 else raw.contiguous()
    native().load(matrix, first_row, raw.shape[0], raw.data_ptr(), raw.stride(0))


def matmul(
    x: Tensor, matrices: Sequence[Any], bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    """x [tokens, columns] times matrices of [rows, columns], side by side, + bias [all rows]:
    [tokens, all rows] of `out_dtype` (x's without one), computed in fp32."""
    wide = x.float().contiguous()
    added = None if bias is None else bias.float()
    tokens, rows = x.shape[0], sum(matrix.rows for matrix in matrices)
    out = empty((tokens, rows))
    native().matmul(
        wide.data_ptr(), wide.shape[1], tokens, list(matrices), out.data_ptr(), rows,
        0 if added is None else added.data_ptr(),
    )  # fmt: skip
    return out.to(out_dtype or x.dtype)


def rows(index: Tensor, matrix: Any, dtype: torch.dtype) -> Tensor:
    """The rows of a packed matrix at int64 index [n], decoded: [n, columns] of `dtype`."""
    ids = index.contiguous()
    out = empty((ids.shape[0], matrix.columns))
    native().gather(matrix, ids.data_ptr(), ids.shape[0], out.data_ptr())
    return out.to(dtype)


def native() -> Any:
    native = cpu.native()
    assert native is not None  # nobody else makes packed matrices
    return native
