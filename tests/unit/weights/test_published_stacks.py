"""All experts' matrices in one fp8 tensor: slices across experts, whatever their scales are for."""

from math import prod

import numpy as np
import pytest

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.prequantized.checkpoint import PublishedCheckpoint
from pagoda.weights.prequantized.matrix import E4M3
from pagoda.weights.prequantized.select import method_of

COUNT, OUT, IN = 3, 40, 128
NAME = "layers.0.mlp.experts.down_proj"
# What a scale's shape is for: rows and columns of a matrix that share one.
SHARED = {
    (COUNT, 2, 2): (32, 64),  # the last block of rows is cut short, in every matrix
    (COUNT, OUT, 1): (1, IN),
    (COUNT, OUT): (1, IN),
    (COUNT, OUT, 4): (1, 32),
    (COUNT, 1, 1): (OUT, IN),
    (COUNT, 1): (OUT, IN),
    (COUNT,): (OUT, IN),
    (1,): None,
    (): None,
}


class Memory:
    """Tensors by name, as they would lie in a file."""

    metadata: dict = {}

    def __init__(self, **tensors: np.ndarray):
        kinds = {np.dtype(np.uint8): "F8_E4M3", np.dtype(np.float32): "F32"}
        self.arrays = {NAME + suffix: x for suffix, x in tensors.items()}
        self.tensors = {
            name: TensorInfo(name, x.shape, kinds[x.dtype], x.nbytes)
            for name, x in self.arrays.items()
        }
        self.released: list[str] = []

    def read(self, name, rows=None, columns=None):
        x = self.arrays[name]
        flat = x.reshape(prod(x.shape[:-1]) if x.ndim > 1 else 1, -1)
        flat = flat[rows or slice(None), columns or slice(None)]
        return np.ascontiguousarray(flat).view(np.uint8)

    def release(self, name):
        self.released.append(name)

    def close(self):
        pass


def published(suffix: str = "_scale_inv", **tensors: np.ndarray) -> PublishedCheckpoint:
    config = {"quant_method": "fp8", "weight_block_size": [32, 64]}
    named = {"" if key == "weight" else suffix: x for key, x in tensors.items()}
    return PublishedCheckpoint(Memory(**named), method_of({"quantization_config": config}))


def random(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(codes of a stack, scales)"""
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 0x7E, (COUNT, OUT, IN), np.uint8)
    return codes, generator.random(shape, np.float32) + np.float32(0.5)


def decoded(raw: np.ndarray) -> np.ndarray:
    """Rows in blocks of a scale and 32 numbers, taken apart."""
    size = FORMATS["FP8"].block_bytes
    blocks = raw.reshape(len(raw), raw.shape[1] // size, size)
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    return (E4M3[blocks[..., 4:]] * scales).reshape(len(raw), 32 * blocks.shape[1])


@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale", "_weight_scale"])
@pytest.mark.parametrize("shape", SHARED)
def test_a_stack_is_as_its_scales_say(shape, suffix):
    codes, scales = random(shape)
    checkpoint = published(suffix, weight=codes, scale=scales)
    (info,) = checkpoint.tensors.values()
    assert (info.name, info.shape, info.type) == (NAME, codes.shape, "FP8")
    expert, row, column = np.indices(codes.shape)
    shared = SHARED[shape]
    if shared is None:
        each = scales.reshape(())
    else:
        height, width = shared
        each = scales.reshape(COUNT, -(-OUT // height), -1)[expert, row // height, column // width]
    expected = (E4M3[codes] * each).reshape(COUNT * OUT, IN)
    whole = checkpoint.read(NAME)
    assert whole.nbytes == info.nbytes
    assert np.array_equal(decoded(whole), expected)
    for rows, columns in (
        (slice(7, 33), None),
        (slice(35, 90), slice(32, 96)),
        (slice(4, 4), None),
    ):
        found = decoded(checkpoint.read(NAME, rows, columns))
        assert np.array_equal(found, expected[rows, columns or slice(None)])
    checkpoint.release(NAME)
    assert set(checkpoint._inner.released) == {NAME, NAME + suffix}
    checkpoint.close()


@pytest.mark.parametrize("shape", [(COUNT + 1, OUT, 1), (COUNT, OUT + 1), (2, 2), (COUNT, 2, 2, 1)])
def test_scales_of_another_model(shape):
    codes, scales = random(shape)
    with pytest.raises(CheckpointError, match=r"down_proj_scale_inv has the shape.*each of"):
        published(weight=codes, scale=scales)


def test_a_stack_without_scales():
    codes, _ = random(())
    with pytest.raises(CheckpointError, match=r"experts\.down_proj lacks the tensor weight_scale"):
        published(weight=codes)


def test_no_matrices():
    _, scales = random((COUNT,))
    codes = np.zeros((COUNT, 2, OUT, IN), np.uint8)
    with pytest.raises(CheckpointError, match="a matrix, or one of each expert"):
        published(weight=codes, scale=scales)
