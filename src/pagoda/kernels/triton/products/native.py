"""Conversions that a GPU has instructions for, as PTX; Triton's interpreter, which has no PTX, gets
the same bits from arithmetic.

All codes of an element are converted at once: of one at a time ptxas makes twice the instructions,
for it moves constants again and again. Who asks for one code after the other has them converted
once: equal conversions are one to the compiler.
"""

import triton
import triton.language as tl
from triton import knobs

from pagoda.kernels.triton.products.fp8 import decode_fp8

_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))

# Bytes with one code each, shifted so that it is behind the highest bit: from there a byte goes
# into a float as it is, as the upper part of the mantissa. Bytes 4 to 7 of `prmt` are the float's.
NIBBLES = tl.constexpr(
    "{.reg .b32 even, odd, over;"
    " mov.b32 over, 0x42000000;"
    " shl.b32 even, $8, 3;"
    " shr.u32 odd, $8, 1;"
    " and.b32 even, even, 0x78787878;"
    " and.b32 odd, odd, 0x78787878;"
    " prmt.b32 $0, even, over, 0x7044;"
    " prmt.b32 $1, odd, over, 0x7044;"
    " prmt.b32 $2, even, over, 0x7144;"
    " prmt.b32 $3, odd, over, 0x7144;"
    " prmt.b32 $4, even, over, 0x7244;"
    " prmt.b32 $5, odd, over, 0x7244;"
    " prmt.b32 $6, even, over, 0x7344;"
    " prmt.b32 $7, odd, over, 0x7344;}"
)
E2M1 = tl.constexpr(
    "{.reg .b32 word, sign, rest;"
    " .reg .b16 low, high;"
    + "".join(
        f" shl.b32 word, $8, {12 - 4 * place};"
        " and.b32 sign, word, 0x80008000;"
        " shr.u32 rest, word, 3;"
        " and.b32 rest, rest, 0x0E000E00;"
        " or.b32 word, rest, sign;"
        " mov.b32 {low, high}, word;"
        f" cvt.f32.f16 ${place}, low;"
        f" cvt.f32.f16 ${place + 4}, high;"
        for place in range(4)
    )
    + "}"
)
E4M3 = tl.constexpr(
    "{.reg .b16 low, high, first, second;"
    " .reg .b32 pair;"
    " mov.b32 {low, high}, $4;"
    " cvt.rn.f16x2.e4m3x2 pair, low;"
    " mov.b32 {first, second}, pair;"
    " cvt.f32.f16 $0, first;"
    " cvt.f32.f16 $1, second;"
    " cvt.rn.f16x2.e4m3x2 pair, high;"
    " mov.b32 {first, second}, pair;"
    " cvt.f32.f16 $2, first;"
    " cvt.f32.f16 $3, second;}"
)
# Where no instruction converts: a code's bits moved to where an fp16 has them, which is 2^-8 of its
# number. Bit 14 is that of the code's lower seven bits plus one: set for NaN alone, and then it
# makes NaN.
E4M3_BITS = tl.constexpr(
    "{.reg .b32 bare, over, both, other;"
    " .reg .b16 low, high;"
    " and.b32 bare, $4, 0x7F7F7F7F;"
    " add.u32 over, bare, 0x01010101;"
    " and.b32 over, over, 0x80808080;"
    " or.b32 bare, bare, over;"
    " shl.b32 both, bare, 7;"
    " and.b32 both, both, 0x7F807F80;"
    " shl.b32 other, $4, 8;"
    " and.b32 other, other, 0x80008000;"
    " or.b32 both, both, other;"
    " mov.b32 {low, high}, both;"
    " cvt.f32.f16 $0, low;"
    " cvt.f32.f16 $2, high;"
    " shr.u32 both, bare, 1;"
    " and.b32 both, both, 0x7F807F80;"
    " and.b32 other, $4, 0x80008000;"
    " or.b32 both, both, other;"
    " mov.b32 {low, high}, both;"
    " cvt.f32.f16 $1, low;"
    " cvt.f32.f16 $3, high;}"
)
_FOUR, _EIGHT = tl.constexpr((tl.float32,) * 4), tl.constexpr((tl.float32,) * 8)


def _in_pairs(made: list[str], scaled: str, off: str, before: str = "") -> str:
    """Eight bf16 of an element `$8`: `made` puts what is at a place and at four more into `word`,
    `scaled` makes weights of it. `fma` is there from sm_80 on, `add` and `mul` are not."""
    constants = f"mov.b32 one, 0x3F803F80; mov.b32 zero, 0x80008000; mov.b32 off, {off};"
    pairs = (
        f"{word} {scaled} mov.b32 {{${place}, ${place + 4}}}, word;"
        for place, word in enumerate(made)
    )
    registers = ".reg .b32 word, rest, one, off, zero, above;"
    return f"{{{registers} {constants} {before} {' '.join(pairs)}}}"


def _of_codes(high_bits: int, scaled: str, off: str, high: str) -> str:
    """`_in_pairs` of codes whose upper bits, if they have some, are those of the element `high`."""
    # 128 and a code are a bf16 with the code in its lowest bits.
    made = [
        f"shr.u32 word, $8, {4 * place}; lop3.b32 word, word, 0x000F000F, 0x43004300, 0xEA;"
        for place in range(4)
    ]
    if not high_bits:
        return _in_pairs(made, scaled, off)
    # The upper bits of the last four codes as far from those of the first four as codes are.
    half = 4 * high_bits
    lower, upper = (1 << half) - 1, ((1 << half) - 1) << 16
    before = (
        f"and.b32 above, {high}, {lower:#x}; shl.b32 rest, {high}, {16 - half};"
        f" lop3.b32 above, rest, {upper:#x}, above, 0xEA;"
    )
    bits = ((1 << high_bits) - 1) << 4
    for place in range(4):
        up = 4 - place * high_bits
        shift = f"shl.b32 rest, above, {up};" if up >= 0 else f"shr.u32 rest, above, {-up};"
        made[place] += f" {shift} lop3.b32 word, rest, {bits << 16 | bits:#x}, word, 0xEA;"
    return _in_pairs(made, scaled, off, before)


_TIMES = (
    "fma.rn.bf16x2 word, word, one, off; fma.rn.bf16x2 rest, word, $11, zero;"
    " fma.rn.bf16x2 word, word, $10, rest;"
)
_PLUS = (
    "fma.rn.bf16x2 word, word, one, off; fma.rn.bf16x2 rest, word, $10, $12;"
    " fma.rn.bf16x2 word, word, $9, $11; fma.rn.bf16x2 word, rest, one, word;"
)
PAIRS, PAIRS_OF_5, PAIRS_OF_6 = (
    tl.constexpr(_of_codes(bits, _TIMES, "$9", "$12")) for bits in range(3)
)
PAIRS_BESIDE, PAIRS_OF_5_BESIDE, PAIRS_OF_6_BESIDE = (
    tl.constexpr(_of_codes(bits, _PLUS, "0xC300C300", "$13")) for bits in range(3)
)
# Exponent and mantissa where a bf16 has them, whose bias is 127 where theirs is 1.
_FLOATS = [
    f"shl.b32 rest, $8, {12 - 4 * place}; and.b32 rest, rest, 0x80008000;"
    + (f" shl.b32 word, $8, {6 - 4 * place};" if place < 2 else
       f" shr.u32 word, $8, {4 * place - 6};")
    + " and.b32 word, word, 0x01C001C0; or.b32 word, word, rest;"
    for place in range(4)
]  # fmt: skip
E2M1_PAIRS = tl.constexpr(
    _in_pairs(
        _FLOATS,
        "fma.rn.bf16x2 word, word, off, zero; fma.rn.bf16x2 rest, word, $10, zero;"
        " fma.rn.bf16x2 word, word, $9, rest;",
        "0x7E807E80",
    )
)
E2M1_PAIRS_OF_POWERS = tl.constexpr(
    _in_pairs(
        _FLOATS,
        "fma.rn.bf16x2 word, word, off, zero; fma.rn.bf16x2 word, word, $9, zero;",
        "0x7F007F00",
    )
)
_EIGHT_BF16 = tl.constexpr((tl.bfloat16,) * 8)
_MADE = tl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r,r")


@triton.jit
def nibble(packed, PLACE: tl.constexpr):
    """fp32 of int32 of any shape: 32 and twice the code of 4 bits at PLACE, the lowest at 0."""
    if _INTERPRETED:
        bits = (((packed >> (4 * PLACE)) & 15) << 19) | 0x42000000
        result = bits.to(tl.float32, bitcast=True)
    else:
        result = tl.inline_asm_elementwise(
            NIBBLES, "=f,=f,=f,=f,=f,=f,=f,=f,r", [packed], dtype=_EIGHT, is_pure=True, pack=1
        )[PLACE]
    return result


@triton.jit
def e2m1(packed, PLACE: tl.constexpr):
    """fp32 of int32 of any shape: the number at PLACE, the lowest at 0, times 2^-14."""
    if _INTERPRETED:
        # Sign, two bits of exponent and one of mantissa, placed in an fp16, whose bias is 15.
        code = packed >> (4 * PLACE)
        bits = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.uint16)
        result = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        result = tl.inline_asm_elementwise(
            E2M1, "=f,=f,=f,=f,=f,=f,=f,=f,r", [packed], dtype=_EIGHT, is_pure=True, pack=1
        )[PLACE]
    return result


@triton.jit
def e4m3(packed, PLACE: tl.constexpr):
    """fp32 of int32 of any shape: the e4m3fn in byte PLACE, the lowest at 0; exact, NaN stays NaN.
    On a GPU, from sm_89 on."""
    if _INTERPRETED:
        result = decode_fp8((packed >> (8 * PLACE)).to(tl.uint8), 3).to(tl.float32)
    else:
        result = tl.inline_asm_elementwise(
            E4M3, "=f,=f,=f,=f,r", [packed], dtype=_FOUR, is_pure=True, pack=1
        )[PLACE]
    return result


@triton.jit
def e4m3_bits(packed, PLACE: tl.constexpr):
    """As `e4m3`, times 2^-8; on any GPU."""
    if _INTERPRETED:
        result = decode_fp8((packed >> (8 * PLACE)).to(tl.uint8), 3).to(tl.float32) * 0.00390625
    else:
        result = tl.inline_asm_elementwise(
            E4M3_BITS, "=f,=f,=f,=f,r", [packed], dtype=_FOUR, is_pure=True, pack=1
        )[PLACE]
    return result


@triton.jit
def bf16_pair(first, second):
    """int32 of fp32 of any shape: the bf16 nearest to the first in the lower half."""
    if _INTERPRETED:
        result = _bits_of_bf16(first) | (_bits_of_bf16(second) << 16)
    else:
        result = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [first, second], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip
    return result


@triton.jit
def bf16_rest(first, second):
    """As `bf16_pair`, of what that leaves of them."""
    both = bf16_pair(first, second)
    low = (both << 16).to(tl.float32, bitcast=True)
    high = (both & -65536).to(tl.float32, bitcast=True)
    return bf16_pair(first - low, second - high)


@triton.jit
def code_pair(packed, high, off, near, rest, PLACE: tl.constexpr, HIGH_BITS: tl.constexpr):
    """Two bf16, of int32 of any shape: the codes of 4 bits at PLACE and at PLACE + 4, with more
    bits of `high`, an integer of that shape, above them, and with `off` + 128 added, times `near` +
    `rest`; these as `bf16_pair` has them."""
    if _INTERPRETED:
        first = _code(packed, high, PLACE, HIGH_BITS) + 128.0 + _low(off)
        second = _code(packed, high, PLACE + 4, HIGH_BITS) + 128.0 + _high(off)
        first = _times(first, _low(near), _low(rest))
        second = _times(second, _high(near), _high(rest))
    else:
        if HIGH_BITS == 0:
            made = tl.inline_asm_elementwise(
                PAIRS, _MADE + ",r,r", [packed, off, near, rest], dtype=_EIGHT_BF16, is_pure=True,
                pack=1,
            )  # fmt: skip
        else:
            made = tl.inline_asm_elementwise(
                PAIRS_OF_5 if HIGH_BITS == 1 else PAIRS_OF_6, _MADE + ",r,r,r",
                [packed, off, near, rest, high.to(tl.int32)], dtype=_EIGHT_BF16, is_pure=True,
                pack=1,
            )  # fmt: skip
        first, second = made[PLACE], made[PLACE + 4]
    return first, second


@triton.jit
def code_pair_beside(packed, high, near, rest, beside, beside_rest, PLACE: tl.constexpr,
                     HIGH_BITS: tl.constexpr):  # fmt: skip
    """As `code_pair`: codes times scales and what is beside them, in two parts each."""
    if _INTERPRETED:
        first = _plus(_code(packed, high, PLACE, HIGH_BITS), _low(near), _low(rest), _low(beside),
                      _low(beside_rest))  # fmt: skip
        second = _plus(_code(packed, high, PLACE + 4, HIGH_BITS), _high(near), _high(rest),
                       _high(beside), _high(beside_rest))  # fmt: skip
    else:
        if HIGH_BITS == 0:
            made = tl.inline_asm_elementwise(
                PAIRS_BESIDE, _MADE + ",r,r,r", [packed, near, rest, beside, beside_rest],
                dtype=_EIGHT_BF16, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            made = tl.inline_asm_elementwise(
                PAIRS_OF_5_BESIDE if HIGH_BITS == 1 else PAIRS_OF_6_BESIDE, _MADE + ",r,r,r,r",
                [packed, near, rest, beside, beside_rest, high.to(tl.int32)], dtype=_EIGHT_BF16,
                is_pure=True, pack=1,
            )  # fmt: skip
        first, second = made[PLACE], made[PLACE + 4]
    return first, second


@triton.jit
def e2m1_pair(packed, near, rest, PLACE: tl.constexpr, POWERS: tl.constexpr):
    """As `code_pair`, of e2m1. With POWERS, scales are powers of two, and halved."""
    if _INTERPRETED:
        UNIT: tl.constexpr = 32768.0 if POWERS else 16384.0
        low, high = e2m1(packed, PLACE) * UNIT, e2m1(packed, PLACE + 4) * UNIT
        if POWERS:
            first, second = _rounded(low * _low(near)), _rounded(high * _high(near))
        else:
            first = _times(low, _low(near), _low(rest))
            second = _times(high, _high(near), _high(rest))
    else:
        if POWERS:
            made = tl.inline_asm_elementwise(
                E2M1_PAIRS_OF_POWERS, _MADE, [packed, near], dtype=_EIGHT_BF16, is_pure=True,
                pack=1,
            )  # fmt: skip
        else:
            made = tl.inline_asm_elementwise(
                E2M1_PAIRS, _MADE + ",r", [packed, near, rest], dtype=_EIGHT_BF16, is_pure=True,
                pack=1,
            )  # fmt: skip
        first, second = made[PLACE], made[PLACE + 4]
    return first, second


# What follows is for the interpreter alone.


@triton.jit
def _code(packed, high, PLACE: tl.constexpr, HIGH_BITS: tl.constexpr):
    code = (packed >> (4 * PLACE)) & 15
    if HIGH_BITS > 0:
        above = (high.to(tl.int32) >> (HIGH_BITS * PLACE)) & ((1 << HIGH_BITS) - 1)
        code |= above << 4
    return code.to(tl.float32)


@triton.jit
def _low(pair):
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def _high(pair):
    return (pair & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _bits_of_bf16(x):
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int32)


@triton.jit
def _rounded(x):
    return (_bits_of_bf16(x) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _times(number, near, rest):
    return _rounded(number * near + _rounded(number * rest))


@triton.jit
def _plus(number, near, rest, beside, beside_rest):
    above = _rounded(number * near + beside)
    return _rounded(_rounded(number * rest + beside_rest) + above)
