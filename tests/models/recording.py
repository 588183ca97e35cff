"""A checkpoint that notes what is read, when, and what is released."""

import numpy as np

from pagoda.weights.checkpoint import Checkpoint, TensorInfo


class RecordingCheckpoint:
    """Wraps another; `tensors` may be changed to make it lie."""

    def __init__(self, inner: Checkpoint):
        self._inner = inner
        self.tensors: dict[str, TensorInfo] = dict(inner.tensors)
        self.metadata = inner.metadata
        self.events: list[tuple[str, str]] = []
        self.bytes_read: dict[str, int] = {}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> np.ndarray:
        raw = self._inner.read(name, rows, columns)
        self.events.append(("read", name))
        self.bytes_read[name] = self.bytes_read.get(name, 0) + raw.nbytes
        return raw

    def release(self, name: str) -> None:
        self.events.append(("release", name))
        self._inner.release(name)

    def close(self) -> None:
        self._inner.close()
