"""Products of fp8 weights with activations rounded to fp8, by the library's scaled matmul.

With tensor cores that take fp8 these products are twice as fast as those of 16-bit numbers, and of
few tokens as fast as memory is. A single token keeps its own precision (`gemm`), and takes as long.

Scales are of whole rows, or of `GROUP` columns of one: so are weights in blocks of 128 x 128 kept,
and cuBLAS takes scales of weights as well as those of activations in that shape, on sm_90.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from pagoda.base.log import get_logger
from pagoda.kernels.triton.products.fp8 import encode_fp8
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

logger = get_logger(__name__)

GROUP = 128
"""Columns that share a scale where a row has several."""
_LARGEST = 448.0  # of E4M3
_UNIT = 16  # rows and columns of the library's products are whole multiples
_PADDED = 4  # with scales of groups, so are tokens
_GROUPS_AT_ONCE = 8


@triton.jit
def _quantize(x, out, scales, stride, columns, largest, BLOCK: tl.constexpr):
    """A row as E4M3, in the order of a `layouts.Layout` of 8 bits, and its scale."""
    token = tl.program_id(0).to(tl.int64)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = tl.load(x + token * stride + column, column < columns, other=0).to(tl.float32)
        most = tl.maximum(most, tl.abs(part))
    scale = tl.max(most, axis=0) / largest
    scale = tl.where(scale == 0.0, 1.0, scale)
    tl.store(scales + token, scale)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = tl.load(x + token * stride + column, column < columns, other=0).to(tl.float32)
        place = column // 16 * 16 + column % 4 * 4 + column // 4 % 4
        tl.store(out + token * columns + place, encode_fp8(part / scale, 3), column < columns)


@triton.jit
def _quantize_groups(x, out, scales, stride, scales_stride, columns, largest, GROUPS: tl.constexpr):
    """As `_quantize`, with a scale for each 128 columns; those of a group lie side by side."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    part = tl.load(x + token * stride + column, column < columns, other=0).to(tl.float32)
    scale = tl.max(tl.abs(part), axis=1) / largest
    scale = tl.where(scale == 0.0, 1.0, scale)
    tl.store(scales + group * scales_stride + token, scale, group * 128 < columns)
    place = column // 16 * 16 + column % 4 * 4 + column // 4 % 4
    codes = encode_fp8(part / scale[:, None], 3)
    tl.store(out + token * columns + place, codes, column < columns)


def declines(x: Tensor, matrix: GpuMatrix, out_dtype: torch.dtype) -> str | None:
    """Why x [tokens, columns] is not multiplied with the matrix so, or None."""
    if matrix.storage != "FP8" or matrix.scales is None:
        return "the weights are not fp8"
    if capability(x) < 89:
        return "fp8 tensor cores begin with sm_89"
    if x.dtype != torch.bfloat16 or out_dtype != torch.bfloat16:
        return "the library's products with a scale per row are in bfloat16"
    in_groups = len(matrix.scales) > 1
    if in_groups and matrix.layout.group != GROUP:
        return f"weights have scales of {matrix.layout.group} columns, not of {GROUP} or of rows"
    if in_groups and capability(x) != 90:
        return f"the library has products with scales of {GROUP} columns for sm_90"
    if matrix.rows % _UNIT or matrix.columns % _UNIT:
        return f"rows and columns are no whole multiples of {_UNIT}"
    return (
        None
        if _works(x.device, in_groups)
        else "this build of torch has no such product on this GPU"
    )


def matmul(x: Tensor, matrix: GpuMatrix, bias: Tensor | None) -> Tensor:
    """bf16 x [tokens, columns] times an FP8 matrix with scales of rows, or of `GROUP` columns of
    them: bf16 [tokens, rows]."""
    assert matrix.scales is not None
    codes, scales = quantized(x) if len(matrix.scales) == 1 else quantized_groups(x)
    weight = matrix.low.view(torch.uint8).view(torch.float8_e4m3fn)
    return _scaled_mm(codes, weight, scales, matrix.scales, bias)[: len(x)]


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """(E4M3 [tokens, columns] in the order of fp8 weights, fp32 scales [tokens, 1]) of x [tokens,
    columns], whole multiples of 16."""
    tokens, columns = x.shape
    codes = torch.empty((tokens, columns), dtype=torch.uint8, device=x.device)
    scales = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    _quantize[(tokens,)](x, codes, scales, x.stride(0), columns, _LARGEST, BLOCK=2048, num_warps=8)
    return codes.view(torch.float8_e4m3fn), scales


def quantized_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantized`, with fp32 scales [tokens, columns / GROUP], one group behind the other in
    memory. Tokens of both are filled up to a multiple of 4, with anything."""
    tokens, columns = x.shape
    filled, groups = -(-tokens // _PADDED) * _PADDED, columns // GROUP
    codes = torch.empty((filled, columns), dtype=torch.uint8, device=x.device)
    scales = torch.empty((groups, filled), dtype=torch.float32, device=x.device)
    _quantize_groups[(tokens, triton.cdiv(groups, _GROUPS_AT_ONCE))](
        x, codes, scales, x.stride(0), filled, columns, _LARGEST, GROUPS=_GROUPS_AT_ONCE,
        num_warps=4,
    )  # fmt: skip
    return codes.view(torch.float8_e4m3fn), scales.t()


def _scaled_mm(
    codes: Tensor, weight: Tensor, scales: Tensor, own: Tensor, bias: Tensor | None
) -> Tensor:
    added = None if bias is None else bias.to(torch.bfloat16)
    return torch._scaled_mm(
        codes, weight.t(), scale_a=scales, scale_b=own, bias=added, out_dtype=torch.bfloat16
    )


@cache
def _works(device: torch.device, in_groups: bool) -> bool:
    """Whether torch multiplies so on `device`, and right: which it does differs by its version."""
    if device.type == "meta":
        return True
    columns, groups = (2 * GROUP, 2) if in_groups else (_UNIT, 1)
    ones = torch.ones(_UNIT, columns, device=device).to(torch.float8_e4m3fn)
    scales = torch.arange(1.0, groups * _UNIT + 1, device=device).view(groups, _UNIT)
    try:
        found = _scaled_mm(ones, ones, scales.t(), scales, scales[0]).float()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        kind = f"scales of {GROUP} columns" if in_groups else "scales of rows"
        logger.info("fp8 weights with %s are decoded on %s: %s", kind, device, error)
        return False
    expected = columns // groups * (scales.t() @ scales) + scales[0]
    return torch.allclose(found, expected, rtol=2**-7)
