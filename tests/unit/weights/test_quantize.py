"""Blocks that Pagoda rounds are read back by the gguf package, and are close to what they were."""

import gguf
import numpy as np
import pytest

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.quantize import quantize_rows
from pagoda.weights.quantized import QuantizedCheckpoint

COLUMNS = 96
STORAGES = ("Q8_0", "Q4_1")


def weights(rows: int = 300, seed: int = 0) -> np.ndarray:
    """fp32 values that bf16 holds, rows of very different size and offset."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, COLUMNS)) * 10.0 ** random.uniform(-4, 2, (rows, 1))
    x += (np.arange(rows)[:, None] % 3 == 0) * random.standard_normal((rows, 1)) * 5
    bits = x.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32)


def as_bf16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def read_back(raw: np.ndarray, storage: str) -> np.ndarray:
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[storage])


def error_per_block(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x - y).astype(np.float64) ** 2).reshape(-1, 32).sum(1)


@pytest.mark.parametrize("storage", STORAGES)
def test_no_weight_moves_by_more_than_half_a_step(storage):
    x = weights()
    y = read_back(quantize_rows(as_bf16(x), "BF16", storage), storage)
    blocks = x.reshape(-1, 32)
    if storage == "Q8_0":
        step = np.abs(blocks).max(1) / 127
    else:  # a search may cut off the ends, for less error in all: 3 naive steps bound it
        step = (blocks.max(1) - blocks.min(1)) / 15 * 6
    # Scales are rounded to fp16 (the smallest to multiples of 2^-24), and so are minima.
    slack = np.abs(blocks).max(1) * 2.0**-10 + 2.0**-25 * 127
    worst = np.abs(blocks - y.reshape(-1, 32)).max(1)
    assert (worst <= step / 2 + slack).all()


def test_four_bits_are_better_than_the_plain_rule():
    x = weights()
    naive = gguf.quantize(x, gguf.GGMLQuantizationType.Q4_1)
    before = error_per_block(x, read_back(naive, "Q4_1"))
    after = error_per_block(x, read_back(quantize_rows(x.view(np.uint8), "F32", "Q4_1"), "Q4_1"))
    assert (after <= before * 1.001 + 1e-12).mean() > 0.99
    assert after.sum() < 0.9 * before.sum()


@pytest.mark.parametrize("storage", STORAGES)
def test_what_lies_on_the_levels_stays(storage):
    random = np.random.default_rng(3)
    raw = gguf.quantize(random.standard_normal((20, 64), np.float32),
                        gguf.GGMLQuantizationType[storage])  # fmt: skip
    x = read_back(raw, storage)
    again = read_back(quantize_rows(x.view(np.uint8), "F32", storage), storage)
    np.testing.assert_allclose(again, x, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.37109375, 1e-12])
def test_constant_blocks(storage, value):
    x = np.full((2, 64), value, np.float32)
    y = read_back(quantize_rows(x.view(np.uint8), "F32", storage), storage)
    np.testing.assert_allclose(y, x, rtol=5e-4, atol=1e-7)


@pytest.mark.parametrize("storage", STORAGES)
def test_sources_agree(storage):
    x = (np.random.default_rng(1).integers(-64, 64, (9, COLUMNS)) / 8).astype(np.float32)
    whole = quantize_rows(x.view(np.uint8), "F32", storage)
    assert np.array_equal(quantize_rows(as_bf16(x), "BF16", storage), whole)
    half = x.astype(np.float16).view(np.uint8)
    assert np.array_equal(quantize_rows(half, "F16", storage), whole)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
def test_weights_without_a_scale_are_refused(storage, bad):
    x = weights(3)
    x[1, 40] = bad
    with pytest.raises(ValueError, match="infinite, NaN or too large"):
        quantize_rows(x.view(np.uint8), "F32", storage)


def test_rows_must_be_whole_blocks():
    with pytest.raises(ValueError, match="33 columns"):
        quantize_rows(np.zeros((1, 33 * 4), np.uint8), "F32", "Q8_0")


class _Checkpoint:
    metadata = {"general.name": "x"}

    def __init__(self, x: np.ndarray):
        self._x = x
        self.tensors = {"a.weight": TensorInfo("a.weight", x.shape, "F32", x.nbytes)}
        self.released: list[str] = []

    def read(self, name, rows=None, columns=None):
        part = self._x[rows or slice(None), columns or slice(None)]
        return np.ascontiguousarray(part).view(np.uint8)

    def release(self, name):
        self.released.append(name)

    def close(self):
        self.released.append("all")


def test_a_slice_of_the_rounded_is_the_rounded_slice():
    inner = _Checkpoint(weights(50))
    rounded = {"a.weight": TensorInfo("a.weight", (50, COLUMNS), "Q4_1", 50 * 60)}
    checkpoint = QuantizedCheckpoint(inner, rounded)
    whole = checkpoint.read("a.weight")
    assert whole.nbytes == rounded["a.weight"].nbytes
    part = checkpoint.read("a.weight", slice(7, 30), slice(32, 96))
    assert np.array_equal(part, whole[7:30, 20:])
    checkpoint.release("a.weight")
    checkpoint.close()
    assert inner.released == ["a.weight", "all"]


def test_bad_weights_name_their_tensor():
    x = weights(4)
    x[3, 0] = np.nan
    rounded = {"a.weight": TensorInfo("a.weight", x.shape, "Q8_0", 4 * 102)}
    with pytest.raises(CheckpointError, match="a.weight cannot be rounded to Q8_0"):
        QuantizedCheckpoint(_Checkpoint(x), rounded).read("a.weight")
