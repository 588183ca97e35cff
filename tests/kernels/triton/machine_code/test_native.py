"""The PTX of conversions, followed step by step: the interpreter cannot run it."""

import re

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


INSTRUCTIONS = {
    "mov.b32": lambda x: x,
    "shl.b32": lambda x, count: (x << count) & MASK,
    "shr.u32": lambda x, count: x >> count,
    "and.b32": lambda x, y: x & y,
    "or.b32": lambda x, y: x | y,
    "add.u32": lambda x, y: (x + y) & MASK,
    "prmt.b32": picked,
    "cvt.rn.f16x2.e4m3x2": lambda x: e4m3_bits(x & 255) | e4m3_bits(x >> 8) << 16,
}


def followed(ptx: str, word: int, outputs: int) -> list[float]:
    """What the code leaves in each output as fp32, of an input that is the operand behind them."""
    values: dict[str, int] = {f"${outputs}": word & MASK}
    floats: dict[str, float] = {}
    for statement in ptx.strip("{}").split(";"):
        name, _, rest = statement.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *given = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        x = [values[g] if g in values else int(g, 0) for g in given]
        if name == "mov.b32" and target.startswith("{"):
            low, high = re.findall(r"\w+", target)
            values[low], values[high] = x[0] & 0xFFFF, x[0] >> 16
        elif name == "cvt.f32.f16":
            floats[target] = float_of(x[0], torch.float16)
        else:
            values[target] = INSTRUCTIONS[name](*x)
    return [
        floats[f"${i}"] if f"${i}" in floats else float_of(values[f"${i}"], torch.float32)
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
