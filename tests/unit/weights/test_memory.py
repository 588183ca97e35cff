"""Loading must not hold the file: pages go once a tensor is copied, and none is read twice."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagoda.weights.safetensors import SafetensorsCheckpoint

TENSORS = 8
TENSOR_BYTES = 4 << 20
# The kernel maps up to 16 pages around a fault, and a header lies in front of the first tensor.
SLACK_BYTES = 256 << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    tensors = rng.integers(0, 256, (TENSORS, TENSOR_BYTES), dtype=np.uint8)
    save_file({f"t{i}": tensor for i, tensor in enumerate(tensors)}, path)
    return path


def resident_bytes(path: Path) -> int:
    """How much of the mapped file is in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_released_tensors_leave_memory(path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(path)
    for name in checkpoint.tensors:
        checkpoint.read(name).sum()
    assert resident_bytes(path) >= TENSORS * TENSOR_BYTES
    for name in checkpoint.tensors:
        checkpoint.release(name)
    assert resident_bytes(path) <= SLACK_BYTES


def test_never_more_than_one_tensor_is_held(path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(path)
    for name in checkpoint.tensors:
        first = checkpoint.read(name).copy()
        assert TENSOR_BYTES <= resident_bytes(path) <= TENSOR_BYTES + SLACK_BYTES
        checkpoint.release(name)
        assert np.array_equal(checkpoint.read(name), first)
        checkpoint.release(name)


def test_the_disk_is_read_once(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = disk_bytes_read()
    checkpoint = SafetensorsCheckpoint(path)
    for name in checkpoint.tensors:
        checkpoint.read(name).sum()
        checkpoint.release(name)
    read = disk_bytes_read() - before
    if read == 0:
        pytest.skip("the temporary folder is not on a disk, or its cache cannot be dropped")
    assert read <= 1.1 * TENSORS * TENSOR_BYTES


def disk_bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
