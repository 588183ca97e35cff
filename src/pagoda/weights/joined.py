"""Checkpoints of several files that belong to one model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt


HEAD_PREFIX = "eagle3."
"""Before the names of a draft head's tensors, where they stand beside those of its model."""


class JoinedCheckpoint:
    """A model's checkpoint and that of its vision tower or draft head as one; of metadata that both
    have the model's counts."""

    def __init__(self, model: Checkpoint, other: Checkpoint, what: str):
        """`what` the other one is, in words."""
        for name in model.tensors.keys() & other.tensors.keys():
            raise CheckpointError(f"Tensor {name!r} is in the model's file and in its {what}'s.")
        self._parts = (model, other)
        self.tensors: Mapping[str, TensorInfo] = {**model.tensors, **other.tensors}
        self.metadata: Mapping[str, Any] = {**other.metadata, **model.metadata}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        return self._owner(name).read(name, rows, columns)

    def release(self, name: str) -> None:
        self._owner(name).release(name)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _owner(self, name: str) -> Checkpoint:
        model, other = self._parts
        return model if name in model.tensors else other


class PrefixedCheckpoint:
    """A checkpoint under other names: `prefix` stands before each. Its metadata stay its own."""

    def __init__(self, checkpoint: Checkpoint, prefix: str):
        self._checkpoint, self._prefix = checkpoint, prefix
        self.metadata: Mapping[str, Any] = {}
        self.tensors: Mapping[str, TensorInfo] = {
            prefix + name: replace(info, name=prefix + name)
            for name, info in checkpoint.tensors.items()
        }

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        return self._checkpoint.read(name.removeprefix(self._prefix), rows, columns)

    def release(self, name: str) -> None:
        self._checkpoint.release(name.removeprefix(self._prefix))

    def close(self) -> None:
        self._checkpoint.close()
