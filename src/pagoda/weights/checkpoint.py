"""What every checkpoint file looks like from outside, whatever its format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint, known from the header alone."""

    name: str
    shape: tuple[int, ...]
    """Row-major, as torch writes it: a GGUF's dimensions are reversed."""
    type: str
    """A storage format of `weights.formats`: BF16, Q4_1, F8_E4M3, ..."""
    nbytes: int
    group: int = 0
    """Columns that share a scale, where they are more than a block of the format."""


class Checkpoint(Protocol):
    """Weights of one model, in one file or many; opened by reading headers only."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, Any]
    """GGUF key-values, or safetensors `__metadata__`."""

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        """Raw bytes of a tensor or of a slice of it, as a read-only view of the mapped file.

        `columns` slices the last dimension, `rows` all others folded into one (a vector has
        neither: of it either slices the elements). A column slice of a block format must lie on
        block boundaries. Returns uint8 [rows, bytes per row].
        """

    def release(self, name: str) -> None:
        """Drop the tensor's pages from memory; reading it again reads the file again."""

    def close(self) -> None: ...
