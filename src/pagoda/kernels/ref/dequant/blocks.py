"""Formats of one scale per block: Q4_0 to Q8_0, IQ4_NL, ternary TQ, MXFP4 and NVFP4.

Each function decodes uint8 [n, block bytes] to fp32 [n, block elements], in the order of
operations of ggml (ggml-quants.c) and of its Python package, so that every bit agrees.
"""

import torch

from pagoda.kernels.ref.dequant.bits import fields, half, in_order, lookup, nibbles, planes

Tensor = torch.Tensor

# Non-linear 4-bit levels of IQ4_NL and IQ4_XS.
IQ4_LEVELS = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    dtype=torch.float32,
)
# E2M1 numbers, doubled to be whole; ggml halves the scales instead. Its minus zero is plain zero.
_E2M1_DOUBLED = torch.tensor(
    (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=torch.float32
)


def q4_0(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's Q4_0 blocks, uint8 [blocks, 18] as in the file."""
    d, packed = fields(blocks, 2, 16)
    return half(d) * (nibbles(packed).float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's Q4_1 blocks, uint8 [blocks, 20] as in the file."""
    d, minimum, packed = fields(blocks, 2, 2, 16)
    return half(d) * nibbles(packed).float() + half(minimum)


def _five_bits(high: Tensor, packed: Tensor) -> Tensor:
    return (nibbles(packed) | (in_order(high, 1, 8) << 4)).float()


def q5_0(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's Q5_0 blocks, uint8 [blocks, 22] as in the file."""
    d, high, packed = fields(blocks, 2, 4, 16)
    return half(d) * (_five_bits(high, packed) - 16)


def q5_1(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's Q5_1 blocks, uint8 [blocks, 24] as in the file."""
    d, minimum, high, packed = fields(blocks, 2, 2, 4, 16)
    return half(d) * _five_bits(high, packed) + half(minimum)


def q8_0(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's Q8_0 blocks, uint8 [blocks, 34] as in the file."""
    d, values = fields(blocks, 2, 32)
    return values.view(torch.int8).float() * half(d)


def iq4_nl(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's IQ4_NL blocks, uint8 [blocks, 18] as in the file."""
    d, packed = fields(blocks, 2, 16)
    return half(d) * lookup(IQ4_LEVELS, nibbles(packed))


def _trits(packed: Tensor, group: int, count: int) -> Tensor:
    """`count` base-3 digits of each byte, most significant first, in groups like `planes`.

    A byte is ceil(number * 256 / 243): times 3, the digit moves into the bits above the byte.
    """
    powers = torch.tensor([3**i for i in range(count)], dtype=torch.int32, device=packed.device)
    grouped = packed.int().reshape(packed.shape[0], -1, 1, group) * powers.view(1, 1, count, 1)
    return (((grouped & 0xFF) * 3) >> 8).reshape(packed.shape[0], -1)


def tq1_0(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's TQ1_0 blocks, uint8 [blocks, 54] as in the file."""
    first, second, last, d = fields(blocks, 32, 16, 4, 2)
    trits = torch.cat((_trits(first, 32, 5), _trits(second, 16, 5), _trits(last, 4, 4)), dim=1)
    return half(d) * (trits.float() - 1)


def tq2_0(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 256] of GGUF's TQ2_0 blocks, uint8 [blocks, 66] as in the file."""
    packed, d = fields(blocks, 64, 2)
    return half(d) * (planes(packed, 32, 2, 4).reshape(-1, 256).float() - 1)


def _e8m0_halved(exponents: Tensor) -> Tensor:
    """2^(e - 127) / 2; the two lowest exponents give subnormal numbers."""
    e = exponents.int()
    bits = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1).clamp(min=0) << 23)
    return bits.view(torch.float32)


def mxfp4(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 32] of GGUF's MXFP4 blocks, uint8 [blocks, 17] as in the file."""
    exponent, packed = fields(blocks, 1, 16)
    return _e8m0_halved(exponent) * lookup(_E2M1_DOUBLED, nibbles(packed))


def _ue4m3_halved(scales: Tensor) -> Tensor:
    """Unsigned E4M3 (bias 7, the sign bit ignored), halved; 0x7F, its NaN, counts as zero."""
    exponent = ((scales >> 3) & 15).float()
    mantissa = (scales & 7).float()
    normal = (1 + mantissa / 8) * torch.exp2(exponent - 7)
    value = torch.where(exponent == 0, mantissa * 2**-9, normal) * 0.5
    return torch.where(scales == 0x7F, 0.0, value)


def nvfp4(blocks: Tensor) -> Tensor:
    """Elements fp32 [blocks, 64] of GGUF's NVFP4 blocks, uint8 [blocks, 36] as in the file."""
    scales, packed = fields(blocks, 4, 32)
    values = lookup(_E2M1_DOUBLED, planes(packed, 8, 4, 2)).reshape(-1, 4, 16)
    return (_ue4m3_halved(scales).unsqueeze(-1) * values).reshape(-1, 64)
