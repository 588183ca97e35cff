"""The two 8-bit floats (OCP OFP8), as bytes: Triton has no such types below sm_89."""

import triton
import triton.language as tl


@triton.jit
def decode_fp8(codes, MANTISSA: tl.constexpr):
    """fp16 of uint8 e4m3fn (3 bits of mantissa) or e5m2 (2); exact, NaN stays NaN."""
    wide = codes.to(tl.uint16)
    if MANTISSA == 2:
        return (wide << 8).to(tl.float16, bitcast=True)
    magnitude = wide & 0x7F
    bits = ((wide & 0x80) << 8) | (magnitude << 7)
    # fp16's exponent has a bias of 15, this one of 7.
    value = bits.to(tl.float16, bitcast=True) * 256.0
    return tl.where(magnitude == 0x7F, float("nan"), value).to(tl.float16)


@triton.jit
def encode_fp8(x, MANTISSA: tl.constexpr):
    """uint8 nearest to fp32 x, ties to even; what is too large, infinity too, becomes the largest
    number, as in `kernels.ref.kv_cache.encode`."""
    BIAS: tl.constexpr = 7 if MANTISSA == 3 else 15
    LARGEST: tl.constexpr = 0x7E if MANTISSA == 3 else 0x7B
    DROPPED: tl.constexpr = 23 - MANTISSA
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    odd = (magnitude >> DROPPED) & 1
    rounded = (magnitude + ((1 << (DROPPED - 1)) - 1) + odd) >> DROPPED
    normal = rounded.to(tl.int32) - ((127 - BIAS) << MANTISSA)
    # Added to a number whose last bit is worth the smallest subnormal, it is rounded to it.
    anchor = tl.full(x.shape, 2.0 ** (24 - BIAS - MANTISSA), tl.float32)
    sunk = tl.abs(x) + anchor
    subnormal = sunk.to(tl.int32, bitcast=True) - anchor.to(tl.int32, bitcast=True)
    code = tl.where(tl.abs(x) < 2.0 ** (1 - BIAS), subnormal, normal)
    code = tl.minimum(code, LARGEST)
    code = tl.where(x != x, 0x7F, code)
    return (code | sign.to(tl.int32)).to(tl.uint8)
