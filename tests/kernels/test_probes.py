"""The ceilings' own loops: what they claim to have done."""

import ctypes
import mmap

import pytest

from tests.kernels.packed import _native

WIDE = ("amx", "avx512", "avx512vnni")


@pytest.mark.parametrize("isa", _native.INSTRUCTION_SETS)
@pytest.mark.parametrize("threads", [1, 2])
def test_operations_are_those_of_the_vectors(isa, threads):
    native, lanes = _native.Native(threads, isa), 16 if isa in WIDE else 8
    # 12 chains of a fused multiply-add; 8 chains of 8 products of 4 bytes.
    assert native.probe_floats(10) == 10 * threads * 12 * lanes * 2
    assert native.probe_dots(10) == 10 * threads * 8 * 8 * lanes * 4 * 2


@pytest.mark.parametrize("isa", _native.INSTRUCTION_SETS)
@pytest.mark.parametrize("size", [0, 1, 511, (256 << 10) + 513])
def test_reading_stays_inside(isa, size):
    # In front of a page that may not be read, a byte too many ends the process.
    pages = -(-max(size, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = start + pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, 0) == 0
    _native.Native(2, isa).probe_read(guard - size, size)
