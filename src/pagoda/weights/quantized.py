"""A checkpoint whose plain matrices are rounded to fewer bits as they are read."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import CheckpointError
from pagoda.base.machine import usable_threads
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.quantize import quantize_rows


class QuantizedCheckpoint:
    """`weights.checkpoint.Checkpoint` of another's tensors, as `tensors` says they are stored.

    Rows are rounded on all usable threads while they are read. CheckpointError for a tensor with
    weights that have no place in its storage format: infinity, NaN.
    """

    def __init__(self, inner: Checkpoint, tensors: Mapping[str, TensorInfo]):
        self._inner = inner
        self._threads = usable_threads()
        self._pool = ThreadPoolExecutor(self._threads, "quantize")
        self.tensors = tensors
        self.metadata = inner.metadata

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> npt.NDArray[np.uint8]:
        raw = self._inner.read(name, rows, columns)
        source, storage = self._inner.tensors[name].type, self.tensors[name].type
        if source == storage:
            return raw
        step = max(1, -(-len(raw) // self._threads))
        parts = [raw[start : start + step] for start in range(0, len(raw), step)]
        try:
            rounded = self._pool.map(lambda part: quantize_rows(part, source, storage), parts)
            return np.concatenate(list(rounded))
        except ValueError as error:
            raise CheckpointError(
                f"Tensor {name} cannot be rounded to {storage}: {error}. Leave out --quantization."
            ) from error

    def release(self, name: str) -> None:
        self._inner.release(name)

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()
