"""Keys that order (value, id) pairs as one integer: falling values, then rising ids.

A largest key is one reduction, ties included, and whole keys can be sorted; no two are equal.
"""

import triton
import triton.language as tl

LEAST = tl.constexpr(-(2**63))
_LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit
def packed(value, index):
    """int64 keys of fp32 values and their ids below 2**32. NaN is above all; -0 is 0."""
    value = tl.where(value != value, float("nan"), tl.where(value == 0.0, 0.0, value))
    bits = value.to(tl.int32, bitcast=True)
    # Two's complement of negative floats falls where their values rise.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (index.to(tl.int64) ^ _LOW)


@triton.jit
def value_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    return (key & _LOW) ^ _LOW
