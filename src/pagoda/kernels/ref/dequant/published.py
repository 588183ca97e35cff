"""What quantized safetensors say, in blocks: an fp32 scale for 32 codes (`weights.formats`).

Each function decodes uint8 [n, block bytes] to fp32 [n, 32]: whole numbers times the scale, with
one rounding; so it equals the packages that wrote them in any dtype that these decode to.
"""

import torch

from pagoda.kernels.ref.dequant.bits import fields, lookup, nibbles

Tensor = torch.Tensor

_E2M1 = torch.tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6))


def _single(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float32)


def int4(blocks: Tensor) -> Tensor:
    """uint8 [n, 20]: fp32 scale, 32 codes of 4 bits that stand for code - 8 -> fp32 [n, 32]."""
    scale, packed = fields(blocks, 4, 16)
    return _single(scale) * (nibbles(packed).float() - 8)


def uint4(blocks: Tensor) -> Tensor:
    """uint8 [n, 21]: fp32 scale, uint8 zero point, 32 codes of 4 bits -> fp32 [n, 32]."""
    scale, zero, packed = fields(blocks, 4, 1, 16)
    return _single(scale) * (nibbles(packed).float() - zero.float())


def int8(blocks: Tensor) -> Tensor:
    """uint8 [n, 36]: fp32 scale, 32 codes of int8 -> fp32 [n, 32]."""
    scale, codes = fields(blocks, 4, 32)
    return _single(scale) * codes.view(torch.int8).float()


def fp8(blocks: Tensor) -> Tensor:
    """uint8 [n, 36]: fp32 scale, 32 codes of E4M3 -> fp32 [n, 32]."""
    scale, codes = fields(blocks, 4, 32)
    return _single(scale) * codes.contiguous().view(torch.float8_e4m3fn).float()


def fp4(blocks: Tensor) -> Tensor:
    """uint8 [n, 22]: fp32 scale, two scales of E4M3, 32 codes of E2M1 -> fp32 [n, 32]."""
    whole, scales, packed = fields(blocks, 4, 2, 16)
    each = scales.contiguous().view(torch.float8_e4m3fn).float() * _single(whole)
    return (lookup(_E2M1, nibbles(packed)).view(-1, 2, 16) * each.unsqueeze(-1)).flatten(1)
