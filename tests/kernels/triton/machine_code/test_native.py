"""The PTX of conversions, followed step by step: the interpreter cannot run it."""

import re
from fractions import Fraction

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels.triton.products import native

WORDS = [0, -1, 0x01234567, 0x89ABCDEF - (1 << 32), 0x7F80FF00, 0x0E7F8E81 - 7]
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MASK = 0xFFFFFFFF


def float_of(bits: int, dtype: torch.dtype) -> float:
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    size = 32 if dtype == torch.float32 else 16
    signed = bits - (1 << size) if bits >> (size - 1) else bits
    return torch.tensor(signed, dtype=kind).view(dtype).item()


def e4m3_bits(byte: int) -> int:
    half = torch.tensor(byte, dtype=torch.uint8).view(torch.float8_e4m3fn).half()
    return half.view(torch.int16).item() & 0xFFFF


def picked(first: int, second: int, selector: int) -> int:
    """`prmt` without the bit that repeats a sign."""
    sources = [(x >> (8 * byte)) & 255 for x in (first, second) for byte in range(4)]
    nibbles = [(selector >> (4 * byte)) & 15 for byte in range(4)]
    assert max(nibbles) < 8
    return sum(sources[nibble] << (8 * byte) for byte, nibble in enumerate(nibbles))


def chosen_bits(first: int, second: int, third: int, table: int) -> int:
    assert table == 0xEA  # 0xF0 & 0xCC | 0xAA
    return first & second | third


def bf16_nearest(exact: Fraction) -> int:
    """The bits of the nearest one, an even one of two; not of infinities."""
    rough = torch.tensor(float(exact)).view(torch.int32).item() & MASK
    bits = rough >> 16
    near = [bits - 1, bits, bits + 1] if bits & 0x7FFF else [bits, bits + 1]
    return min(near, key=lambda x: (abs(Fraction(float_of(x, torch.bfloat16)) - exact), x & 1))


def fused_pairs(first: int, second: int, third: int) -> int:
    result = 0
    for half in (0, 16):
        x, y, z = (
            Fraction(float_of((value >> half) & 0xFFFF, torch.bfloat16))
            for value in (first, second, third)
        )
        result |= bf16_nearest(x * y + z) << half
    return result


INSTRUCTIONS = {
    "mov.b32": lambda x: x,
    "shl.b32": lambda x, count: (x << count) & MASK,
    "shr.u32": lambda x, count: x >> count,
    "and.b32": lambda x, y: x & y,
    "or.b32": lambda x, y: x | y,
    "add.u32": lambda x, y: (x + y) & MASK,
    "prmt.b32": picked,
    "lop3.b32": chosen_bits,
    "fma.rn.bf16x2": fused_pairs,
    "cvt.rn.f16x2.e4m3x2": lambda x: e4m3_bits(x & 255) | e4m3_bits(x >> 8) << 16,
}


def followed(ptx: str, word: int, outputs: int, *others: int) -> list[float]:
    """What the code leaves in each output as fp32 (as bf16 of halves of a register), of inputs that
    are the operands behind them."""
    values = {f"${outputs + i}": value & MASK for i, value in enumerate((word, *others))}
    floats: dict[str, float] = {}
    for statement in ptx.strip("{}").split(";"):
        name, _, rest = statement.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *given = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        x = [values[g] if g in values else int(g, 0) for g in given]
        if name == "mov.b32" and target.startswith("{"):
            low, high = re.findall(r"[$\w]+", target)
            values[low], values[high] = x[0] & 0xFFFF, x[0] >> 16
        elif name == "cvt.f32.f16":
            floats[target] = float_of(x[0], torch.float16)
        else:
            values[target] = INSTRUCTIONS[name](*x)
    in_halves = "bf16x2" in ptx
    return [
        floats[f"${i}"]
        if f"${i}" in floats
        else float_of(values[f"${i}"], torch.bfloat16 if in_halves else torch.float32)
        for i in range(outputs)
    ]


@pytest.mark.parametrize("word", WORDS)
def test_nibbles(word):
    found = followed(native.NIBBLES.value, word, 8)
    assert found == [32.0 + 2 * ((word >> (4 * place)) & 15) for place in range(8)]


@pytest.mark.parametrize("word", WORDS)
def test_e2m1(word):
    codes = [(word >> (4 * place)) & 15 for place in range(8)]
    expected = [(-1.0 if code & 8 else 1.0) * E2M1[code & 7] * 2.0**-14 for code in codes]
    assert followed(native.E2M1.value, word, 8) == expected


@pytest.mark.parametrize("word", WORDS)
def test_e4m3(word):
    raw = torch.tensor([(word >> (8 * place)) & 255 for place in range(4)], dtype=torch.uint8)
    found = torch.tensor(followed(native.E4M3.value, word, 4))
    expected = raw.view(torch.float8_e4m3fn).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("first", [0, 64, 128, 192])
def test_every_e4m3_by_bits(first):
    """In every byte of a word."""
    for code in range(first, first + 64):
        raw = torch.tensor([code, 255 - code, code ^ 0x55, 0x7F], dtype=torch.uint8).roll(code)
        word = sum(byte << (8 * place) for place, byte in enumerate(raw.tolist()))
        found = torch.tensor(followed(native.E4M3_BITS.value, word, 4)) * 256
        expected = raw.view(torch.float8_e4m3fn).float()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


SCALES = [0.0123, -1.7, 3.1e-5, 250.3, 0.0078125]


def two(value: float) -> tuple[int, int]:
    """A number in both halves of a register, as bf16, and what that leaves of it."""
    near = torch.tensor(value).bfloat16()
    rest = (torch.tensor(value) - near.float()).bfloat16()
    return tuple((x.view(torch.int16).item() & 0xFFFF) * 0x10001 for x in (near, rest))


def codes_of(word: int, high: int, high_bits: int) -> list[int]:
    mask = (1 << high_bits) - 1
    return [
        (word >> (4 * place)) & 15 | ((high >> (high_bits * place)) & mask) << 4
        for place in range(8)
    ]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("ptx", "high_bits"), [("PAIRS", 0), ("PAIRS_OF_5", 1), ("PAIRS_OF_6", 2)])
def test_codes_in_pairs(ptx, high_bits, scale, word):
    """Signs of narrow elements may stand in bits that no code has."""
    zero, high = 16, (word ^ 0x5A3C) & ((1 << 8 * high_bits) - 1)
    off, (near, rest) = two(-128.0 - zero)[0], two(scale)
    for extended in (high, high | (MASK << 8 * high_bits & MASK)):
        given = (extended,) if high_bits else ()
        found = followed(getattr(native, ptx).value, word, 8, off, near, rest, *given)
        exact = [scale * (code - zero) for code in codes_of(word, high, high_bits)]
        torch.testing.assert_close(found, exact, rtol=1.001 * 2**-8, atol=0)
        rounded = torch.tensor(exact).bfloat16().tolist()
        assert sum(x == y for x, y in zip(found, rounded, strict=True)) >= 7


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("ptx", "high_bits"),
    [("PAIRS_BESIDE", 0), ("PAIRS_OF_5_BESIDE", 1), ("PAIRS_OF_6_BESIDE", 2)],
)
def test_codes_in_pairs_with_minima(ptx, high_bits, scale, word):
    high, minimum = (word ^ 0x5A3C) & ((1 << 8 * high_bits) - 1), -7.3 * scale
    given = (*two(scale), *two(minimum), *((high,) if high_bits else ()))
    found = followed(getattr(native, ptx).value, word, 8, *given)
    exact = [scale * code + minimum for code in codes_of(word, high, high_bits)]
    torch.testing.assert_close(found, exact, rtol=1.001 * 2**-7, atol=abs(minimum) * 2**-16)


@pytest.mark.parametrize("word", WORDS)
def test_e2m1_in_pairs(word):
    codes = [(word >> (4 * place)) & 15 for place in range(8)]
    numbers = [(-1.0 if code & 8 else 1.0) * E2M1[code & 7] for code in codes]
    for scale in SCALES:
        found = followed(native.E2M1_PAIRS.value, word, 8, *two(scale))
        exact = [scale * number for number in numbers]
        torch.testing.assert_close(found, exact, rtol=1.001 * 2**-8, atol=0)
    for exponent in (-127, -3, 0, 100):
        half = two(2.0 ** (exponent - 1))[0]
        found = followed(native.E2M1_PAIRS_OF_POWERS.value, word, 8, half)
        assert found == [number * 2.0**exponent for number in numbers]
