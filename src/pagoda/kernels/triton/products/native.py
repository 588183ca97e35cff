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
