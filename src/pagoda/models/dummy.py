"""Random weights for a model of which only the configuration is at hand."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.quant.plain import STORAGES
from pagoda.weights.checkpoint import TensorInfo

_SCALE = 0.02  # the usual initializer_range; keeps activations finite in fp16


class DummyCheckpoint:
    """A checkpoint of the given names and shapes, stored in `dtype`; a tensor's values depend on
    its name alone.

    Norms are ones, all else is uniform within +-0.02, so that a rank's slice is a slice of the
    same whole.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype):
        (storage,) = (name for name, kind in STORAGES.items() if kind is dtype)
        self._dtype = dtype
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, shape, storage, dtype.itemsize * int(np.prod(shape)))
            for name, shape in shapes.items()
        }
        self.metadata: Mapping[str, Any] = {}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> npt.NDArray[np.uint8]:
        shape = self.tensors[name].shape
        if len(shape) == 1 and not name.endswith(".bias"):
            return self._stored(np.ones((1, *shape), np.float32))
        seed = zlib.crc32(name.encode())
        if len(shape) == 3:  # of a stack only what is asked for is made: it may be large
            stack = range(shape[0])[rows or slice(None)]
            values = np.concatenate([_uniform((seed, i), shape[1:]) for i in stack])
        else:
            values = _uniform((seed,), shape).reshape(-1, shape[-1])[rows or slice(None)]
        values = values[:, columns or slice(None)]
        # In place: a large model's token table has gigabytes.
        values -= np.float32(0.5)
        values *= np.float32(2 * _SCALE)
        return self._stored(values)

    def release(self, name: str) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def _stored(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        stored: npt.NDArray[np.uint8] = (
            torch.from_numpy(values).to(self._dtype).view(torch.uint8).numpy()
        )
        return stored


def _uniform(seed: tuple[int, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Between 0 and 1."""
    return np.random.Generator(np.random.SFC64(seed)).random(shape, np.float32)
