"""Weights of a `layouts.Layout` as numbers, and their products with rows of activations.

What the decoder gives equals `kernels.ref.dequant` in fp32 bit for bit. The products below walk
over columns in steps of `layouts.STEP` (256), the 8 runs of 32 one by one, and are shared by all
kernels that multiply.
"""

import triton
import triton.language as tl

from pagoda.kernels.triton.products.fp8 import decode_fp8
from pagoda.kernels.triton.products.layouts import Layout

# A float with this exponent counts in ones: small integers are put into its mantissa, for the
# conversion of integers runs at a quarter of the rate and less.
_ONES = tl.constexpr(0x4B000000)
_ONES_VALUE = tl.constexpr(8388608.0)
# The 16 levels of IQ4 (as in `ref.dequant_blocks`) plus 128, a byte each, the first lowest.
_LOW_LEVELS = tl.constexpr(0x766A5D4F3F2D1801)
_HIGH_LEVELS = tl.constexpr(0xF1D9C5B5A6998D81 - (1 << 64))


@triton.constexpr_function
def _bits(layout: Layout, plane: int) -> int:
    return layout.planes[plane] if len(layout.planes) > plane else 0


@triton.jit
def load_codes(plane, row, there, run, columns, LAYOUT: tl.constexpr):
    """Elements [rows, 32] that hold the codes of run `run`; of plain weights these themselves."""
    RUNS: tl.constexpr = LAYOUT.runs
    CODES: tl.constexpr = LAYOUT.codes
    inside = (run // RUNS) * 32 + tl.arange(0, 32)
    elements = columns if CODES == "plain" else tl.cdiv(columns, 32 * RUNS) * 32
    mask = there[:, None] & (inside < elements)[None, :]
    return tl.load(plane + row.to(tl.int64)[:, None] * elements + inside[None, :], mask, other=0)


@triton.jit
def _small(integers):
    """fp32 of integers in [0, 2^23)."""
    return (integers | _ONES).to(tl.float32, bitcast=True) - _ONES_VALUE


@triton.jit
def _numbers(low, high, PLACE: tl.constexpr, LAYOUT: tl.constexpr):
    """fp32 [rows, 32] of what the codes of one run mean, without scale and zero point."""
    CODES: tl.constexpr = LAYOUT.codes
    BITS: tl.constexpr = _bits(LAYOUT, 0)
    HIGH_BITS: tl.constexpr = _bits(LAYOUT, 1)
    codes = (low.to(tl.int32) >> (BITS * PLACE)) & ((1 << BITS) - 1)
    if HIGH_BITS > 0:
        above = (high.to(tl.int32) >> (HIGH_BITS * PLACE)) & ((1 << HIGH_BITS) - 1)
        codes = codes | (above << BITS)
    if CODES == "e2m1":
        # Sign, two bits of exponent and one of mantissa, placed in an fp16, whose bias is 15; the
        # numbers are doubled, for their scales are halved.
        bits = (((codes & 8) << 12) | ((codes & 7) << 9)).to(tl.uint16)
        numbers = bits.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0
    elif CODES == "e4m3":
        numbers = decode_fp8(codes.to(tl.uint8), 3).to(tl.float32)
    elif CODES == "levels":
        table = tl.where(codes < 8, _LOW_LEVELS, _HIGH_LEVELS)
        level = (table >> ((codes & 7) * 8).to(tl.int64)).to(tl.int32) & 255
        numbers = _small(level) - 128.0
    else:
        tl.static_assert(CODES == "integer")
        OFFSET: tl.constexpr = LAYOUT.offset
        numbers = (codes | _ONES).to(tl.float32, bitcast=True) - (_ONES_VALUE + OFFSET)
    return numbers


@triton.jit
def _scale(scales, supers, group, step, row, there, rows, columns, MINIMUM: tl.constexpr,
           KIND: tl.constexpr):  # fmt: skip
    """fp32 [rows] of one group: its scale or (of `byte` and `nibble`) its minimum."""
    own = tl.load(scales + group * rows + row, there, other=0)
    if KIND == "power":
        # 2^(code - 128), half of what E8M0 says; the two lowest are subnormal.
        code = own.to(tl.int32)
        bits = tl.where(code < 2, 0x200000 << code, (code - 1) << 23)
        result = tl.where(there, bits, 0).to(tl.float32, bitcast=True)
    elif KIND == "byte" or KIND == "nibble":
        if KIND == "nibble":
            own = (own >> 4) if MINIMUM else (own & 15)
        block = step + MINIMUM * (columns // 256)
        result = own.to(tl.float32) * tl.load(supers + block * rows + row, there, other=0)
    else:
        result = own.to(tl.float32)
    return result


@triton.jit
def _scales_of_run(scales, supers, step, RUN: tl.constexpr, row, there, rows, columns,
                   MINIMUM: tl.constexpr, KIND: tl.constexpr, LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows, 32] or [rows, 1]."""
    GROUP: tl.constexpr = LAYOUT.group
    column = step * 256 + RUN * 32
    if KIND != "byte" and KIND != "nibble":  # of those a row has whole steps
        column = tl.minimum(column, columns - 1)
    group = column // GROUP
    first = _scale(scales, supers, group, step, row, there, rows, columns, MINIMUM, KIND)[:, None]
    if GROUP == 16:
        second = _scale(scales, supers, group + 1, step, row, there, rows, columns, MINIMUM, KIND)
        first = tl.where((tl.arange(0, 32) < 16)[None, :], first, second[:, None])
    return first


@triton.jit
def decoded(low, high, scales, minima, supers, step, RUN: tl.constexpr, row, there, rows, columns,
            LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows, 32]: run RUN of a step, `low` and `high` the elements that hold its codes.

    `row` and `there` [rows]: which rows of the matrix of `rows`, and whether they exist; weights
    of those that do not are zero. Behind a row's end they are anything that its group could hold.
    """
    CODES: tl.constexpr = LAYOUT.codes
    SCALE: tl.constexpr = LAYOUT.scale
    MINIMUM: tl.constexpr = LAYOUT.minimum
    RUNS: tl.constexpr = LAYOUT.runs
    if CODES == "plain":
        result = low.to(tl.float32)
    else:
        result = _numbers(low, high, RUN % RUNS, LAYOUT)
        scale = _scales_of_run(
            scales, supers, step, RUN, row, there, rows, columns, 0, SCALE, LAYOUT
        )
        if MINIMUM == "taken":
            source = scales if SCALE == "nibble" else minima
            result = result * scale - _scales_of_run(
                source, supers, step, RUN, row, there, rows, columns, 1, SCALE, LAYOUT
            )
        elif MINIMUM == "":
            result *= scale
        else:
            beside = _scales_of_run(
                minima, supers, step, RUN, row, there, rows, columns, 0, "half", LAYOUT
            )
            result = (result - beside) * scale if MINIMUM == "zero" else result * scale + beside
    return result


@triton.jit
def row_sums(x, low, high, scales, minima, supers, row, there, rows, columns, first, last,
             LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows]: one row of activations, at `x`, times rows of the matrix, steps `first` to
    `last`; without tensor cores, in fp32 throughout."""
    RUNS: tl.constexpr = LAYOUT.runs
    place = tl.arange(0, 32)
    total = tl.zeros((row.shape[0], 32), tl.float32)
    for step in range(first, last):
        for run in tl.static_range(8):
            if run % RUNS == 0:
                below = load_codes(low, row, there, step * 8 + run, columns, LAYOUT)
                above = below
                if high is not None:
                    above = load_codes(high, row, there, step * 8 + run, columns, LAYOUT)
            weights = decoded(below, above, scales, minima, supers, step, run, row, there, rows,
                              columns, LAYOUT)  # fmt: skip
            column = step * 256 + run * 32 + place
            given = tl.load(x + column, column < columns, other=0).to(tl.float32)
            total += weights * given[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def products(x_rows, x_there, low, high, scales, minima, supers, row, there, rows, columns, first,
             last, LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [tokens, rows]: rows of activations at `x_rows` [tokens] times rows of the matrix,
    rounded to their type; on tensor cores, steps `first` to `last`."""
    RUNS: tl.constexpr = LAYOUT.runs
    dtype: tl.constexpr = x_rows.dtype.element_ty
    place = tl.arange(0, 32)
    total = tl.zeros((x_rows.shape[0], row.shape[0]), tl.float32)
    for step in range(first, last):
        for run in tl.static_range(8):
            if run % RUNS == 0:
                below = load_codes(low, row, there, step * 8 + run, columns, LAYOUT)
                above = below
                if high is not None:
                    above = load_codes(high, row, there, step * 8 + run, columns, LAYOUT)
            weights = decoded(below, above, scales, minima, supers, step, run, row, there, rows,
                              columns, LAYOUT)  # fmt: skip
            column = step * 256 + run * 32 + place
            given = tl.load(x_rows[:, None] + column[None, :],
                            x_there[:, None] & (column < columns)[None, :], other=0)  # fmt: skip
            total = tl.dot(given, tl.trans(weights.to(dtype)), total)
    return total
