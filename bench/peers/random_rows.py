"""Random weights with a standard deviation of about 0.02, as rows of each storage format.

Blocks are random bytes, whose scales are set.
"""

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

_DEVIATION = 0.02
# Rows that are made at a time: the tensors of an 8B model do not fit a small memory twice.
_ROWS = 4096

# Where a block has its fp16 scale and, behind it, its fp16 minimum; and the minimum that centers
# random codes, in scales.
_SCALES = {
    Type.Q4_0: (0, 0.0),
    Type.Q4_1: (0, -7.5),
    Type.Q8_0: (0, 0.0),
    Type.Q2_K: (80, 1.5),
    Type.Q4_K: (0, 7.5),
    Type.Q5_K: (0, 15.5),
    Type.Q6_K: (208, 0.0),
    Type.IQ1_S: (0, 0.0),
    Type.IQ2_XXS: (0, 0.0),
    Type.IQ2_XS: (0, 0.0),
    Type.IQ2_S: (0, 0.0),
    Type.IQ3_XXS: (0, 0.0),
    Type.IQ3_S: (0, 0.0),
    Type.IQ4_XS: (0, 0.0),
    Type.TQ1_0: (52, 0.0),
    Type.TQ2_0: (64, 0.0),
}


def row_bytes(kind: Type, columns: int) -> int:
    weights, size = GGML_QUANT_SIZES[kind]
    return columns // weights * size


def row_maker(kind: Type, rng: np.random.Generator) -> Callable[[int, int], np.ndarray]:
    """Makes so many rows of so many columns: uint8 [rows, bytes of a row], or fp32 or fp16 [rows,
    columns]."""
    size = GGML_QUANT_SIZES[kind][1]
    if kind in (Type.F32, Type.F16):
        dtype = np.float32 if kind is Type.F32 else np.float16
        return lambda rows, columns: (
            rng.standard_normal((rows, columns), np.float32) * np.float32(_DEVIATION)
        ).astype(dtype)
    if kind is Type.BF16:
        return lambda rows, columns: _random_bf16(rng, rows, columns)
    scale = 1.0
    sample = rng.integers(0, 256, (256, size), np.uint8)
    if kind is Type.TQ2_0:
        _make_ternary(sample[..., :64])
    _set_scale(kind, sample, scale)
    scale = _DEVIATION / float(dequantize(sample, kind).std())

    def make(rows: int, columns: int) -> np.ndarray:
        blocks = row_bytes(kind, columns) // size
        out = np.empty((rows, blocks, size), np.uint8)
        for start in range(0, rows, _ROWS):
            part = out[start : start + _ROWS]
            part[:] = rng.integers(0, 256, part.shape, np.uint8)
            if kind is Type.TQ2_0:
                _make_ternary(part[..., :64])
            _set_scale(kind, part, scale)
        return out.reshape(rows, -1)

    return make


def _make_ternary(codes: np.ndarray) -> None:
    """In place; of the four values that two bits have the last becomes the middle one of three."""
    codes &= ~((codes & (codes >> 1) & 0x55) << 1)


def _set_scale(kind: Type, blocks: np.ndarray, scale: float) -> None:
    """In place; blocks: uint8 [..., bytes of a block]."""
    if kind is Type.MXFP4:
        blocks[..., 0] = 128 + round(np.log2(scale))  # an exponent; values count in halves
        return
    if kind is Type.IQ1_M:  # an fp16 number in the highest bits of four bytes
        bits = int(np.array([scale], np.float16).view(np.uint16)[0])
        for i in range(4):
            place = 49 + 2 * i
            blocks[..., place] = (blocks[..., place] & 15) | ((bits >> (4 * i)) & 15) << 4
        return
    offset, minimum = _SCALES[kind]
    blocks[..., offset : offset + 2] = np.array([scale], np.float16).view(np.uint8)
    if minimum:
        pair = np.array([scale * minimum], np.float16).view(np.uint8)
        blocks[..., offset + 2 : offset + 4] = pair


def _random_bf16(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    out = np.empty((rows, 2 * columns), np.uint8)
    for start in range(0, rows, _ROWS):
        part = out[start : start + _ROWS]
        values = rng.standard_normal((len(part), columns), np.float32) * np.float32(_DEVIATION)
        part[:] = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return out
