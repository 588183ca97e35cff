"""K-quants: 256 elements in 8 or 16 groups, whose scales are themselves quantized.

Each function decodes uint8 [n, block bytes] to fp32 [n, 256], in ggml's order of operations.
"""

import torch

from pagoda.kernels.ref.dequant.bits import fields, half, planes

Tensor = torch.Tensor


def q2_k(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's Q2_K blocks, uint8 [blocks, 84] as in the file."""
    scales, packed, d, minimum = fields(blocks, 16, 64, 2, 2)
    scale = half(d) * (scales & 15).float()
    offset = half(minimum) * (scales >> 4).float()
    q = planes(packed, 32, 2, 4).reshape(-1, 16, 16).float()
    return (scale.unsqueeze(-1) * q - offset.unsqueeze(-1)).reshape(-1, 256)


def q3_k(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's Q3_K blocks, uint8 [blocks, 110] as in the file."""
    mask, packed, scales, d = fields(blocks, 32, 64, 12, 2)
    # 16 six-bit scales: low nibbles of 8 bytes (then high ones), top bits in the last 4 bytes.
    low = planes(scales[:, :8], 8, 4, 2).reshape(-1, 16)
    high = planes(scales[:, 8:], 4, 2, 4).reshape(-1, 16)
    scale = half(d) * ((low | (high << 4)).float() - 32)
    q = planes(packed, 32, 2, 4).reshape(-1, 16, 16).float()
    # A mask bit that is clear takes 4 off.
    clear = 1 - planes(mask, 32, 1, 8).reshape(-1, 16, 16).float()
    return (scale.unsqueeze(-1) * (q - 4 * clear)).reshape(-1, 256)


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima of 12 bytes, as fp32 [n, 8, 1]."""
    first, second, last = fields(packed, 4, 4, 4)
    scales = torch.cat((first & 63, (last & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 2) & 48)), dim=1)
    return scales.float().unsqueeze(-1), minima.float().unsqueeze(-1)


def _scaled(d: Tensor, minimum: Tensor, scales: Tensor, q: Tensor) -> Tensor:
    group_scales, group_minima = _scales_and_minima(scales)
    scale = half(d).unsqueeze(-1) * group_scales
    offset = half(minimum).unsqueeze(-1) * group_minima
    return (scale * q - offset).reshape(-1, 256)


def q4_k(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's Q4_K blocks, uint8 [blocks, 144] as in the file."""
    d, minimum, scales, packed = fields(blocks, 2, 2, 12, 128)
    return _scaled(d, minimum, scales, planes(packed, 32, 4, 2).reshape(-1, 8, 32).float())


def q5_k(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's Q5_K blocks, uint8 [blocks, 176] as in the file."""
    d, minimum, scales, high, packed = fields(blocks, 2, 2, 12, 32, 128)
    low = planes(packed, 32, 4, 2).reshape(-1, 8, 32)
    q = low | (planes(high, 32, 1, 8).reshape(-1, 8, 32) << 4)
    return _scaled(d, minimum, scales, q.float())


def q6_k(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's Q6_K blocks, uint8 [blocks, 210] as in the file."""
    low, high, scales, d = fields(blocks, 128, 64, 16, 2)
    scale = half(d) * scales.view(torch.int8).float()
    nibbles = planes(low, 64, 4, 2).reshape(-1, 16, 16)
    q = nibbles | (planes(high, 32, 2, 4).reshape(-1, 16, 16) << 4)
    return (scale.unsqueeze(-1) * (q.float() - 32)).reshape(-1, 256)
