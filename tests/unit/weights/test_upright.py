"""Matrices of experts that lie on their side in the file, and those that do not."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagoda.weights.safetensors import SafetensorsCheckpoint
from pagoda.weights.upright import UprightCheckpoint

PREFIX = "model.layers.0.mlp.experts."
SIZES = {"": (24, 40), "hidden as wide as an expert": (24, 24), "as gate and up": (48, 24)}


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


def checkpoint(folder: Path, tensors: dict[str, np.ndarray]) -> UprightCheckpoint:
    laid = {PREFIX + name: np.ascontiguousarray(x) for name, x in tensors.items()}
    save_file(laid, folder / "model.safetensors")
    return UprightCheckpoint(SafetensorsCheckpoint(folder))


def values(found: UprightCheckpoint, name: str, rows=None, columns=None) -> np.ndarray:
    return found.read(PREFIX + name, rows, columns).view(np.float16)


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_are_rows(sizes: str, lying: bool, tmp_path: Path) -> None:
    """Also where sizes are equal, so that neither matrix alone would tell."""
    hidden, wide = SIZES[sizes]
    upright = {"gate_up_proj": random(3, 2 * wide, hidden), "down_proj": random(3, hidden, wide)}
    stored = {name: x.swapaxes(1, 2) if lying else x for name, x in upright.items()}
    found = checkpoint(tmp_path, stored)
    for name, x in upright.items():
        assert found.tensors[PREFIX + name].shape == x.shape
        flat = x.reshape(-1, x.shape[-1])
        assert np.array_equal(values(found, name), flat)
        height = x.shape[1]
        for rows in (slice(1, 2), slice(5, height), slice(height - 3, 2 * height + 1), slice(4, 4)):
            assert np.array_equal(values(found, name, rows), flat[rows])
            assert np.array_equal(values(found, name, rows, slice(2, 9)), flat[rows, 2:9])
    found.release(PREFIX + "down_proj")
    found.close()


def test_scales_turn_with_their_matrices(tmp_path: Path) -> None:
    """But those of down's rows as FBGEMM has them, which stand upright beside it."""
    upright = {
        "gate_up_proj": random(2, 16, 32), "gate_up_proj_scale_inv": random(2, 2, 4),
        "gate_up_proj_scale": random(2, 16, 1), "gate_up_proj_weight_scale": random(1),
        "down_proj": random(2, 32, 8), "down_proj_scale": random(2, 32, 1),
    }  # fmt: skip
    stored = {
        name: x if x.ndim < 3 or name == "down_proj_scale" else x.swapaxes(1, 2)
        for name, x in upright.items()
    }
    found = checkpoint(tmp_path, stored)
    for name, x in upright.items():
        assert found.tensors[PREFIX + name].shape == x.shape, name
        assert np.array_equal(values(found, name).reshape(x.shape), x), name


@pytest.mark.parametrize(
    "tensors",
    [
        {"gate_up_proj": random(2, 16, 32)},
        {"gate_up_proj": random(2, 16, 32), "down_proj": random(2, 7, 32)},
        {"gate_up_proj": random(2, 15, 32), "down_proj": random(2, 32, 8)},
        {"gate_up_proj": random(16, 32), "down_proj": random(32, 8)},
        {"0.gate_up_proj": random(2, 32, 16), "0.down_proj": random(2, 8, 32)},
    ],
)
def test_what_is_no_pair_stays_as_it_is(tensors: dict, tmp_path: Path) -> None:
    found = checkpoint(tmp_path, tensors)
    for name, x in tensors.items():
        assert found.tensors[PREFIX + name].shape == x.shape
        assert np.array_equal(values(found, name).reshape(x.shape), x)


def test_blocks_are_not_turned(tmp_path: Path) -> None:
    """A row of a matrix on its side has two codes in a byte, of two of its columns."""
    shapes = {"gate_up_proj": [2, 32, 16], "down_proj": [2, 8, 32]}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 32 * shape[1] * shape[2] // 32
        header[PREFIX + name] = {"dtype": "F4", "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(end))
    found = UprightCheckpoint(SafetensorsCheckpoint(tmp_path))
    assert {name: list(found.tensors[PREFIX + name].shape) for name in shapes} == shapes
