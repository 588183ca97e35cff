"""What blocks of a storage format say, apart: codes, scales and minima, bit for bit.

Each function takes uint8 [n, block bytes]; formats as in `kernels.ref.dequant.formats`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from pagoda.kernels.ref.dequant.bits import fields, in_order, nibbles, planes, words

Tensor = torch.Tensor


class Fields(NamedTuple):
    """The fields of n blocks, side by side."""

    codes: Tensor
    """uint8 [n, block elements]."""
    scales: Tensor
    """[n, groups]."""
    minima: Tensor | None = None
    """[n, groups]."""
    supers: Tensor | None = None
    """fp16 [n, 1 or 2]: what scales, and minima, are multiplied with; of FP4 fp32 [n, 1]."""


def _q4_0(blocks: Tensor) -> Fields:
    d, packed = fields(blocks, 2, 16)
    return Fields(nibbles(packed), _half(d))


def _q4_1(blocks: Tensor) -> Fields:
    d, minimum, packed = fields(blocks, 2, 2, 16)
    return Fields(nibbles(packed), _half(d), _half(minimum))


def _five_bits(high: Tensor, packed: Tensor) -> Tensor:
    return nibbles(packed) | (in_order(high, 1, 8) << 4)


def _q5_0(blocks: Tensor) -> Fields:
    d, high, packed = fields(blocks, 2, 4, 16)
    return Fields(_five_bits(high, packed), _half(d))


def _q5_1(blocks: Tensor) -> Fields:
    d, minimum, high, packed = fields(blocks, 2, 2, 4, 16)
    return Fields(_five_bits(high, packed), _half(d), _half(minimum))


def _q8_0(blocks: Tensor) -> Fields:
    d, codes = fields(blocks, 2, 32)
    return Fields(codes ^ 128, _half(d))


def _q2_k(blocks: Tensor) -> Fields:
    scales, packed, supers = fields(blocks, 16, 64, 4)
    # Scales and minima share bytes.
    return Fields(_runs(packed, 32, 2, 4), scales, None, _half(supers))


def _q3_k(blocks: Tensor) -> Fields:
    mask, packed, scales, d = fields(blocks, 32, 64, 12, 2)
    low = _runs(scales[:, :8], 8, 4, 2)
    high = _runs(scales[:, 8:], 4, 2, 4)
    codes = _runs(packed, 32, 2, 4) | (_runs(mask, 32, 1, 8) << 2)
    return Fields(codes, (low | (high << 4)).view(torch.int8) - 32, None, _half(d))


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 12 bytes."""
    first, second, last = fields(packed, 4, 4, 4)
    scales = torch.cat((first & 63, (last & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 2) & 48)), dim=1)
    return scales.view(torch.int8), minima.view(torch.int8)


def _q4_k(blocks: Tensor) -> Fields:
    supers, scales, packed = fields(blocks, 4, 12, 128)
    return Fields(_runs(packed, 32, 4, 2), *_six_bits(scales), _half(supers))


def _q5_k(blocks: Tensor) -> Fields:
    supers, scales, high, packed = fields(blocks, 4, 12, 32, 128)
    codes = _runs(packed, 32, 4, 2) | (_runs(high, 32, 1, 8) << 4)
    return Fields(codes, *_six_bits(scales), _half(supers))


def _q6_k(blocks: Tensor) -> Fields:
    low, high, scales, d = fields(blocks, 128, 64, 16, 2)
    codes = _runs(low, 64, 4, 2) | (_runs(high, 32, 2, 4) << 4)
    return Fields(codes, scales.view(torch.int8), None, _half(d))


def _iq4_xs(blocks: Tensor) -> Fields:
    d, high, low, packed = fields(blocks, 2, 2, 4, 128)
    top = in_order(words(high, torch.int16), 2, 8)
    scales = (in_order(low, 4, 2).int() | (top << 4)) - 32
    return Fields(_runs(packed, 16, 4, 2), scales.to(torch.int8), None, _half(d))


def _mxfp4(blocks: Tensor) -> Fields:
    exponent, packed = fields(blocks, 1, 16)
    return Fields(nibbles(packed), exponent)


def _int4(blocks: Tensor) -> Fields:
    scale, packed = fields(blocks, 4, 16)
    return Fields(nibbles(packed), _single(scale))


def _uint4(blocks: Tensor) -> Fields:
    scale, zero, packed = fields(blocks, 4, 1, 16)
    return Fields(nibbles(packed), _single(scale), zero)


def _int8(blocks: Tensor) -> Fields:
    scale, codes = fields(blocks, 4, 32)
    return Fields(codes ^ 128, _single(scale))


def _fp8(blocks: Tensor) -> Fields:
    scale, codes = fields(blocks, 4, 32)
    return Fields(codes, _single(scale))


def _fp4(blocks: Tensor) -> Fields:
    whole, scales, packed = fields(blocks, 4, 2, 16)
    return Fields(nibbles(packed), scales, None, _single(whole))


FIELDS: dict[str, Callable[[Tensor], Fields]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "INT4": _int4,
    "UINT4": _uint4,
    "INT8": _int8,
    "FP8": _fp8,
    "FP4": _fp4,
}


def _half(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16)


def _single(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float32)


def _runs(packed: Tensor, group: int, bits: int, count: int) -> Tensor:
    return planes(packed, group, bits, count).flatten(1)
