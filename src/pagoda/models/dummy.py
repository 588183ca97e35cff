"""Random weights for a model of which only the configuration is at hand."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.weights.checkpoint import TensorInfo

_SCALE = 0.02  # the usual initializer_range; keeps activations finite in fp16


class DummyCheckpoint:
    """A checkpoint of the given names and shapes; a tensor's values depend on its name alone.

    Norms are ones, all else is uniform within +-0.02, so that a rank's slice is a slice of the
    same whole.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, shape, "F32", 4 * int(np.prod(shape)))
            for name, shape in shapes.items()
        }
        self.metadata: Mapping[str, Any] = {}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> npt.NDArray[np.uint8]:
        shape = self.tensors[name].shape
        if len(shape) == 1 and not name.endswith(".bias"):
            return np.ones((1, *shape), np.float32).view(np.uint8)
        generator = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
        values = generator.random(shape, np.float32).reshape(-1, shape[-1])
        values = values[rows or slice(None), columns or slice(None)]
        scaled: npt.NDArray[np.float32] = (values - np.float32(0.5)) * np.float32(2 * _SCALE)
        return scaled.view(np.uint8)

    def release(self, name: str) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""
