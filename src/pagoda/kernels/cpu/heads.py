"""Products of heads with packed matrices: pointers of torch tensors for the native kernels."""

import torch

from pagoda.kernels.cpu import packed
from pagoda.kernels.cpu.arguments import check, dims
from pagoda.kernels.cpu.experts import PackedExperts
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor


def head_products(x: Tensor, weight: PackedExperts, kept: int, behind: Tensor | None) -> Tensor:
    """As `ops.head_products`, of fp32; a head's matrix is in the place of an expert's."""
    tokens, heads, size = dims("x", x, 3)
    (matrix,) = weight.parts
    if (heads, size) != (weight.count, kept + matrix.columns):
        raise ValueError(
            f"x is {list(x.shape)}; there are {weight.count} heads of {kept} + {matrix.columns}."
        )
    check("x", x[0, 0] if tokens else x, torch.float32)
    beside, stride = 0, 0
    if behind is not None:
        _, beside = dims("behind", behind, 2)
        check("behind", behind[0] if tokens else behind, torch.float32)
        stride = behind.stride(0)
    out = empty((tokens, heads * (kept + weight.rows) + beside))
    packed.native().head_products(
        x.data_ptr(), tokens, x.stride(0), x.stride(1), kept, heads, matrix, weight.rows,
        0 if behind is None else behind.data_ptr(), stride, beside, out.data_ptr(),
    )  # fmt: skip
    return out
