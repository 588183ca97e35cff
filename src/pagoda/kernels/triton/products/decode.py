"""Weights of a `layouts.Layout` as numbers, and their products with rows of activations.

What the decoder gives equals `kernels.ref.dequant` in fp32 bit for bit. The products below walk
over columns in steps of `layouts.STEP` (256), and are shared by all kernels that multiply. They ask
for the codes of the next step before they use those of this one.

A thread has whole quads of elements, of one group of columns, so that it applies a scale once for
16 or 32 weights. It counts `codes` as numbers that take few instructions to make (`_number`), and
puts right by how much these are off when it applies the scale.
"""

import triton
import triton.language as tl

from pagoda.kernels.triton.products.fp8 import decode_fp8
from pagoda.kernels.triton.products.layouts import Layout
from pagoda.kernels.triton.products.native import (
    bf16_pair,
    bf16_rest,
    code_pair,
    code_pair_beside,
    e2m1,
    e2m1_pair,
    e4m3,
    e4m3_bits,
    nibble,
)

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


@triton.constexpr_function
def _nibbles(layout: Layout) -> bool:
    return layout.codes == "integer" and layout.planes == (4,)


@triton.constexpr_function
def _base(layout: Layout) -> float:
    """What `_number` gives for a code that means zero, offset apart."""
    if layout.codes != "integer":
        return 0.0
    return 32.0 if _nibbles(layout) else 2.0 ** sum(layout.planes)


@triton.constexpr_function
def _unit(layout: Layout) -> float:
    """How much of `_number` is one: a power of two."""
    if layout.codes == "e2m1":  # where scales are halved, numbers are doubled
        return 2.0**-15 if layout.scale == "power" else 2.0**-14
    if layout.codes == "e4m3":
        return 2.0**-8
    return 2.0 if _nibbles(layout) else 1.0


@triton.jit
def load_codes(plane, row, step, columns, LAYOUT: tl.constexpr, WHOLE: tl.constexpr):
    """Elements [rows, 256 / codes of each] that hold the codes of a step, in quads.

    `row` [rows] are rows of the matrix that exist; WHOLE where columns are whole steps.
    """
    CODES: tl.constexpr = LAYOUT.codes_each
    element = step * (256 // CODES) + tl.arange(0, 256 // CODES)
    elements = columns // (4 * CODES) * 4
    place = row.to(tl.int64)[:, None] * elements + element[None, :]
    # A thread takes a quad of every plane, though more bytes of a narrow one would fit a load.
    place = tl.max_contiguous(place, [1, 4])
    if WHOLE:
        loaded = tl.load(plane + place)
    else:
        loaded = tl.load(plane + place, (element < elements)[None, :], other=0)
    return loaded


@triton.jit
def _number(low, high, PLACE: tl.constexpr, LAYOUT: tl.constexpr):
    """fp32 [rows, elements]: `_base` plus `_unit` times what the code at PLACE means."""
    CODES: tl.constexpr = LAYOUT.codes
    BITS: tl.constexpr = _bits(LAYOUT, 0)
    HIGH_BITS: tl.constexpr = _bits(LAYOUT, 1)
    if _nibbles(LAYOUT):
        number = nibble(low, PLACE)
    elif CODES == "e2m1":
        number = e2m1(low, PLACE)
    elif CODES == "e4m3x2":
        number = e4m3(low, PLACE)
    elif CODES == "e4m3":
        number = e4m3_bits(low, PLACE)
    else:
        codes = (low.to(tl.int32) >> (BITS * PLACE)) & ((1 << BITS) - 1)
        if HIGH_BITS > 0:
            above = (high.to(tl.int32) >> (HIGH_BITS * PLACE)) & ((1 << HIGH_BITS) - 1)
            codes = codes | (above << BITS)
        if CODES == "levels":
            table = tl.where(codes < 8, _LOW_LEVELS, _HIGH_LEVELS)
            level = (table >> ((codes & 7) * 8).to(tl.int64)).to(tl.int32) & 255
            number = (level | _ONES).to(tl.float32, bitcast=True) - (_ONES_VALUE + 128.0)
        else:
            tl.static_assert(CODES == "integer")
            # The upper bits of a mantissa whose exponent makes them count in ones.
            ALL: tl.constexpr = BITS + HIGH_BITS
            bits = (codes << (23 - ALL)) | ((127 + ALL) << 23)
            number = bits.to(tl.float32, bitcast=True)
    return number


@triton.jit
def _group_scale(scales, supers, step, SHARE: tl.constexpr, row, rows, columns,
                 MINIMUM: tl.constexpr, KIND: tl.constexpr, LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows, quads of a step]: scales, or minima, of share SHARE of the quads."""
    GROUP: tl.constexpr = LAYOUT.group
    QUAD: tl.constexpr = 4 * LAYOUT.codes_each
    column = step * 256 + tl.arange(0, 256 // QUAD) * QUAD + SHARE * GROUP
    if KIND != "byte" and KIND != "nibble":  # of those a row has whole steps
        column = tl.minimum(column, columns - 1)
    # Each thread loads what it needs itself, however its neighbours could share a load.
    place = (column // GROUP).to(tl.int64)[None, :] * rows + row.to(tl.int64)[:, None]
    place = tl.max_contiguous(place, [1, 1])
    own = tl.load(scales + place)
    if KIND == "power":
        # 2^(code - 128), half of what E8M0 says; the two lowest are subnormal.
        code = own.to(tl.int32)
        bits = tl.where(code < 2, 0x200000 << code, (code - 1) << 23)
        result = bits.to(tl.float32, bitcast=True)
    elif KIND == "e4m3":
        shared = tl.load(supers + row.to(tl.int64))
        result = decode_fp8(own, 3).to(tl.float32) * shared[:, None]
    elif KIND == "byte" or KIND == "nibble":
        if KIND == "nibble":
            own = (own >> 4) if MINIMUM else (own & 15)
        block = step + MINIMUM * (columns // 256)
        shared = tl.load(supers + block * rows + row.to(tl.int64)).to(tl.float32)
        result = own.to(tl.float32) * shared[:, None]
    else:
        result = own.to(tl.float32)
    return result


@triton.jit
def _beside(scales, minima, supers, step, SHARE: tl.constexpr, row, rows, columns,
            LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows, quads of a step]: what the layout has beside its scales."""
    KIND: tl.constexpr = LAYOUT.scale
    if LAYOUT.minimum == "taken":
        source = scales if KIND == "nibble" else minima
        result = _group_scale(source, supers, step, SHARE, row, rows, columns, 1, KIND, LAYOUT)
    else:
        result = _group_scale(minima, supers, step, SHARE, row, rows, columns, 0, "half", LAYOUT)
    return result


@triton.jit
def _spread(values, QUADS: tl.constexpr):
    """[rows, quads] as [rows, elements]."""
    wide = tl.broadcast_to(values[:, :, None], (values.shape[0], QUADS, 4))
    return tl.reshape(wide, (values.shape[0], 4 * QUADS))


@triton.jit
def _weights(low, high, scale, beside, PLACE: tl.constexpr, LAYOUT: tl.constexpr):
    """fp32 [rows, elements]: the weights at PLACE of each element, with scales of quads."""
    MINIMUM: tl.constexpr = LAYOUT.minimum
    QUADS: tl.constexpr = 64 // LAYOUT.codes_each
    number = _number(low, high, PLACE, LAYOUT)
    INVERSE: tl.constexpr = 1.0 / _unit(LAYOUT)
    OFF: tl.constexpr = _base(LAYOUT) * INVERSE + LAYOUT.offset
    if LAYOUT.codes == "e4m3":  # scales that 2^8 takes to infinity are no weights' scales
        wide = _spread(scale * INVERSE, QUADS)
    else:
        number = number * INVERSE - OFF
        wide = _spread(scale, QUADS)
    if MINIMUM == "zero":
        number = (number - _spread(beside, QUADS)) * wide
    elif MINIMUM == "added":
        number = number * wide + _spread(beside, QUADS)
    elif MINIMUM == "taken":
        number = number * wide - _spread(beside, QUADS)
    else:
        number = number * wide
    return number


@triton.constexpr_function
def has_one_group(layout: Layout) -> bool:
    """Whether all columns share a scale: `GpuMatrix.settle` makes no other group so large."""
    return layout.group > 256


@triton.constexpr_function
def shares_of(layout: Layout) -> int:
    """Groups of columns that a quad of elements has part in."""
    return max(1, 4 * layout.codes_each // layout.group)


@triton.jit
def columns_of_part(step, PART: tl.constexpr, LAYOUT: tl.constexpr):
    """[64] the columns of `part_of_weights`."""
    place = tl.arange(0, 64)
    if LAYOUT.codes == "plain":
        column = PART * 64 + place
    elif LAYOUT.codes_each == 4:
        column = place // 4 * 16 + PART * 4 + place % 4
    elif LAYOUT.in_pairs:
        quad = place // 32 * 4 + place // 2 % 4
        column = quad * 32 + (PART + 4 * (place % 2)) * 4 + place // 8 % 4
    else:
        quad = place // 32 * 4 + place // 4 % 4
        column = quad * 32 + (2 * PART + place // 16 % 2) * 4 + place % 4
    return step * 256 + column


@triton.jit
def part_of_weights(low, high, scales, PART: tl.constexpr, LAYOUT: tl.constexpr,
                    DTYPE: tl.constexpr):  # fmt: skip
    """[rows, 64], a quarter of a step: one place of each element, or two where an element has
    eight; fp32, or bf16 where DTYPE is that and the layout is `in_pairs`.

    Each four quads are beside each other, as in an operand of a tensor core, where four threads
    share a row: a thread that decodes whole quads has what it multiplies. The two weights of a
    pair are one register of it.
    """
    ROWS: tl.constexpr = low.shape[0]
    if LAYOUT.codes_each == 4:
        weights = _weights(low, high, scales[0], scales[1], PART, LAYOUT)
    elif LAYOUT.in_pairs:
        if _is_bf16(DTYPE):
            first, second = _pair(low, high, scales, PART, LAYOUT)
        else:
            first = _weights(low, high, scales[0], scales[1], PART, LAYOUT)
            second = _weights(low, high, scales[2], scales[3], PART + 4, LAYOUT)
        quads = tl.reshape(tl.join(first, second), (ROWS, 2, 4, 4, 2))
        weights = tl.reshape(tl.permute(quads, (0, 1, 3, 2, 4)), (ROWS, 64))
    else:
        first = _weights(low, high, scales[0], scales[1], 2 * PART, LAYOUT)
        second = _weights(low, high, scales[0], scales[1], 2 * PART + 1, LAYOUT)
        quads = tl.reshape(tl.join(first, second), (ROWS, 2, 4, 4, 2))
        weights = tl.reshape(tl.permute(quads, (0, 1, 4, 2, 3)), (ROWS, 64))
    return weights


@triton.constexpr_function
def _is_bf16(dtype: tl.dtype) -> bool:
    return bool(dtype == tl.bfloat16)


@triton.jit
def _pair(low, high, scales, PART: tl.constexpr, LAYOUT: tl.constexpr):
    """bf16 [rows, elements]: the weights at PART and at PART + 4 of each element.

    A scale is the sum of two numbers of bf16, so that nearly all weights are rounded as from fp32.
    """
    MINIMUM: tl.constexpr = LAYOUT.minimum
    QUADS: tl.constexpr = 8
    HIGH_BITS: tl.constexpr = _bits(LAYOUT, 1)
    near = _spread(bf16_pair(scales[0], scales[2]), QUADS)
    if LAYOUT.scale == "power":
        result = e2m1_pair(low, near, near, PART, True)
    else:
        rest = _spread(bf16_rest(scales[0], scales[2]), QUADS)
        if LAYOUT.codes == "e2m1":
            result = e2m1_pair(low, near, rest, PART, False)
        elif MINIMUM == "zero":
            zero = _spread(bf16_pair(-128.0 - scales[1], -128.0 - scales[3]), QUADS)
            result = code_pair(low, high, zero, near, rest, PART, HIGH_BITS)
        elif MINIMUM == "":
            off = tl.full(low.shape, _offsets(LAYOUT), tl.int32)
            result = code_pair(low, high, off, near, rest, PART, HIGH_BITS)
        else:
            SIGN: tl.constexpr = -1.0 if MINIMUM == "taken" else 1.0
            first, second = SIGN * scales[1], SIGN * scales[3]
            result = code_pair_beside(
                low, high, near, rest, _spread(bf16_pair(first, second), QUADS),
                _spread(bf16_rest(first, second), QUADS), PART, HIGH_BITS,
            )  # fmt: skip
    return result


@triton.constexpr_function
def _offsets(layout: Layout) -> int:
    """int32 with two bf16: -128 less the offset, which are the last bits of that number."""
    return (0xC300C300 | layout.offset << 16 | layout.offset) - (1 << 32)


@triton.jit
def scales_of_step(scales, minima, supers, step, row, rows, columns, LAYOUT: tl.constexpr):
    """As `part_of_weights` takes them of a layout that is `in_pairs`, for all parts: (scales, what
    is beside them) of the first half of the places of each element, and of the second."""
    scale, beside = _of_share(scales, minima, supers, step, 0, row, rows, columns, LAYOUT)
    other, other_beside = scale, beside
    if shares_of(LAYOUT) == 2:
        other, other_beside = _of_share(scales, minima, supers, step, 1, row, rows, columns, LAYOUT)
    return scale, beside, other, other_beside


@triton.jit
def scales_of_part(scales, minima, supers, step, PART: tl.constexpr, row, rows, columns,
                   LAYOUT: tl.constexpr):  # fmt: skip
    """As `part_of_weights` takes them of another layout: held for a part alone, they leave more
    registers to codes in two planes."""
    SHARE: tl.constexpr = PART * shares_of(LAYOUT) // 4
    return _of_share(scales, minima, supers, step, SHARE, row, rows, columns, LAYOUT)


@triton.jit
def _of_share(scales, minima, supers, step, SHARE: tl.constexpr, row, rows, columns,
              LAYOUT: tl.constexpr):  # fmt: skip
    KIND: tl.constexpr = LAYOUT.scale
    scale = _group_scale(scales, supers, step, SHARE, row, rows, columns, 0, KIND, LAYOUT)
    beside = scale
    if LAYOUT.minimum != "":
        beside = _beside(scales, minima, supers, step, SHARE, row, rows, columns, LAYOUT)
    return scale, beside


@triton.jit
def row_sums(x, low, high, scales, minima, supers, row, rows, columns, first, last,
             LAYOUT: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """fp32 [rows]: one row of activations, at `x`, times rows of the matrix of `rows`, steps
    `first` to `last`, which are one at least; without tensor cores, in fp32 throughout. `row` and
    WHOLE as for `load_codes`."""
    if LAYOUT.codes == "plain":
        result = _plain_sums(x, low, row, columns, first, last, WHOLE)
    else:
        result = _decoded_sums(x, low, high, scales, minima, supers, row, rows, columns, first,
                               last, LAYOUT, WHOLE)  # fmt: skip
    return result


@triton.jit
def _plain_sums(x, weights, row, columns, first, last, WHOLE: tl.constexpr):
    total = tl.zeros((row.shape[0], 32), tl.float32)
    begin = weights + row.to(tl.int64)[:, None] * columns
    for step in range(first, last):
        for run in tl.static_range(8):
            column = step * 256 + run * 32 + tl.arange(0, 32)
            if WHOLE:
                own, given = tl.load(begin + column[None, :]), tl.load(x + column)
            else:
                inside = column < columns
                own = tl.load(begin + column[None, :], inside[None, :], other=0)
                given = tl.load(x + column, inside, other=0)
            total += own.to(tl.float32) * given.to(tl.float32)[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def _decoded_sums(x, low, high, scales, minima, supers, row, rows, columns, first, last,
                  LAYOUT: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    CODES: tl.constexpr = LAYOUT.codes_each
    QUADS: tl.constexpr = 64 // CODES
    SHARES: tl.constexpr = shares_of(LAYOUT)
    PLACES: tl.constexpr = CODES // SHARES
    ALIKE: tl.constexpr = has_one_group(LAYOUT)
    # Else ptxas moves the next step's codes to the place of this one's: a quarter of the
    # instructions that a weight of 8 bits takes. With 4 bits, it makes more of two turns.
    TURNS: tl.constexpr = 8 // CODES
    ROWS: tl.constexpr = row.shape[0]
    element = tl.arange(0, 4 * QUADS)
    inside = element // 4 * (4 * CODES) + element % 4
    total = tl.zeros((ROWS, QUADS), tl.float32)
    dots = tl.zeros((ROWS, 4 * QUADS), tl.float32)
    sums = tl.zeros((4 * QUADS,), tl.float32)
    below = load_codes(low, row, first, columns, LAYOUT, WHOLE)
    above = below
    if high is not None:
        above = load_codes(high, row, first, columns, LAYOUT, WHOLE)
    for step in tl.range(first, last, loop_unroll_factor=TURNS):
        following = tl.minimum(step + 1, last - 1)
        next_below = load_codes(low, row, following, columns, LAYOUT, WHOLE)
        next_above = next_below
        if high is not None:
            next_above = load_codes(high, row, following, columns, LAYOUT, WHOLE)
        for share in tl.static_range(SHARES):
            for place in tl.static_range(share * PLACES, (share + 1) * PLACES):
                column = step * 256 + inside + 4 * place
                if WHOLE:
                    given = tl.load(x + column).to(tl.float32)
                else:
                    given = tl.load(x + column, column < columns, other=0).to(tl.float32)
                dots += _number(below, above, place, LAYOUT) * given[None, :]
                sums += given
            if not ALIKE:
                total += _scaled_dots(dots, sums, scales, minima, supers, step, share, row, rows,
                                      columns, LAYOUT)  # fmt: skip
                dots = tl.zeros((ROWS, 4 * QUADS), tl.float32)
                sums = tl.zeros((4 * QUADS,), tl.float32)
        below = next_below
        above = next_above
    if ALIKE:
        total = _scaled_dots(dots, sums, scales, minima, supers, first, 0, row, rows, columns,
                             LAYOUT)  # fmt: skip
    return tl.sum(total, axis=1)


@triton.jit
def _scaled_dots(dots, sums, scales, minima, supers, step, SHARE: tl.constexpr, row, rows, columns,
                 LAYOUT: tl.constexpr):  # fmt: skip
    """fp32 [rows, quads]: products of weights, of those of `_number`s, `dots` [rows, elements];
    `sums` [elements] are those of what they were multiplied with."""
    QUADS: tl.constexpr = 64 // LAYOUT.codes_each
    dot = tl.sum(tl.reshape(dots, (row.shape[0], QUADS, 4)), axis=2)
    sums = tl.sum(tl.reshape(sums, (QUADS, 4)), axis=1)[None, :]
    MINIMUM: tl.constexpr = LAYOUT.minimum
    INVERSE: tl.constexpr = 1.0 / _unit(LAYOUT)
    OFF: tl.constexpr = _base(LAYOUT) * INVERSE + LAYOUT.offset
    KIND: tl.constexpr = LAYOUT.scale
    scale = _group_scale(scales, supers, step, SHARE, row, rows, columns, 0, KIND, LAYOUT)
    if MINIMUM != "":
        beside = _beside(scales, minima, supers, step, SHARE, row, rows, columns, LAYOUT)
    if MINIMUM == "zero":
        result = (dot * INVERSE - (OFF + beside) * sums) * scale
    elif MINIMUM == "added":
        result = (dot * INVERSE - OFF * sums) * scale + beside * sums
    elif MINIMUM == "taken":
        result = (dot * INVERSE - OFF * sums) * scale - beside * sums
    elif OFF != 0.0:
        result = (dot * INVERSE - OFF * sums) * scale
    else:
        result = dot * INVERSE * scale
    return result


@triton.jit
def products(x_rows, x_there, low, high, scales, minima, supers, row, rows, columns, first, last,
             LAYOUT: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    """fp32 [tokens, rows]: rows of activations at `x_rows` [tokens], as `arranged` has them, times
    rows of the matrix, rounded to their type; on tensor cores. As `row_sums` otherwise.

    Weights are the first operand, which may come from registers, where they were decoded.
    """
    dtype: tl.constexpr = x_rows.dtype.element_ty
    total = tl.zeros((row.shape[0], x_rows.shape[0]), tl.float32)
    for step in range(first, last):
        if LAYOUT.codes != "plain":
            below = load_codes(low, row, step, columns, LAYOUT, WHOLE)
            above = below
            if high is not None:
                above = load_codes(high, row, step, columns, LAYOUT, WHOLE)
            if LAYOUT.in_pairs:
                known = scales_of_step(scales, minima, supers, step, row, rows, columns, LAYOUT)
        for part in tl.static_range(4):
            column = step * 256 + part * 64 + tl.arange(0, 64)
            inside = x_there[:, None]
            if LAYOUT.codes == "plain":  # noqa: SIM102 - as the others here
                if not WHOLE:
                    inside &= (column < columns)[None, :]
            given = tl.load(x_rows[:, None] + column[None, :], inside, other=0)
            if LAYOUT.codes == "plain":
                begin = low + row.to(tl.int64)[:, None] * columns
                if WHOLE:
                    weights = tl.load(begin + column[None, :])
                else:
                    weights = tl.load(begin + column[None, :], (column < columns)[None, :], other=0)
            else:
                if not LAYOUT.in_pairs:
                    known = scales_of_part(
                        scales, minima, supers, step, part, row, rows, columns, LAYOUT
                    )
                weights = part_of_weights(below, above, known, part, LAYOUT, dtype)
            total = tl.dot(weights.to(dtype), tl.trans(given), total)
    return tl.trans(total)
