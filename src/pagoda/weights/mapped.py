"""Tensors that lie in memory-mapped files: what the GGUF and safetensors readers share."""

import contextlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS
from pagoda.weights.hub.store import is_headers_only

if TYPE_CHECKING:  # numpy takes a tenth of a second to import, and headers need none
    import numpy as np
    import numpy.typing as npt

# No file has as many. At 8 bytes each their size still fits the numbers of numpy and mmap.
_MAX_ELEMENTS = 2**56


class MappedFile:
    """One file, mapped read-only.

    Pages come in on first touch, read ahead sequentially; `release` takes them out of this
    process's memory again. Truncating the file while it is mapped is beyond any reader's help.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if self.size == 0:
                    raise CheckpointError(f"{path} is empty; fetch it again.")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
        self.map.madvise(mmap.MADV_SEQUENTIAL)
        self._headers_only = is_headers_only(path)

    def bytes_at(self, offset: int, nbytes: int) -> "npt.NDArray[np.uint8]":
        if self._headers_only:
            raise CheckpointError(
                f"{self.path} has a header but no weights: it was fetched for planning. "
                "`pagoda pull` fetches models."
            )
        import numpy as np

        return np.frombuffer(self.map, np.uint8, nbytes, offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Unmap the pages of a range, those it shares with its neighbours too.

        The pages stay in the kernel's file cache while there is room for them, so a second look
        (and the next start) is cheap; under memory pressure they go without being written.
        """
        if nbytes == 0:
            return
        start = offset - offset % mmap.PAGESIZE
        self.map.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def close(self) -> None:
        # While views of it are held somewhere it cannot close; it then ends with the last of them.
        with contextlib.suppress(BufferError):
            self.map.close()


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes lie."""

    file: MappedFile
    offset: int


class MappedCheckpoint:
    """`weights.checkpoint.Checkpoint` over mapped files; readers fill in the three tables."""

    def __init__(
        self,
        tensors: Mapping[str, TensorInfo],
        metadata: Mapping[str, Any],
        places: Mapping[str, Place],
    ):
        self.tensors = tensors
        self.metadata = metadata
        self._places = dict(places)

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> "npt.NDArray[np.uint8]":
        """As the protocol says. A tensor of one dimension is one row, and `rows` slices it.

        Raises KeyError for an unknown name, ValueError for a slice that cannot be a view.
        """
        info = self.tensors[name]
        place = self._places[name]
        raw = place.file.bytes_at(place.offset, info.nbytes)
        if not info.shape:
            return raw.reshape(1, -1)
        row_bytes = FORMATS[info.type].nbytes(info.shape[-1])
        if len(info.shape) == 1:
            columns = columns if rows is None else rows
        elif rows is not None:
            first, last = _span(rows, prod(info.shape[:-1]), name)
            raw = raw[first * row_bytes : last * row_bytes]
        raw = raw.reshape(-1, row_bytes) if raw.size else raw.reshape(0, row_bytes)
        if columns is None:
            return raw
        return raw[:, _byte_span(columns, info)]

    def release(self, name: str) -> None:
        place = self._places[name]
        place.file.release(place.offset, self.tensors[name].nbytes)

    def close(self) -> None:
        for file in {id(place.file): place.file for place in self._places.values()}.values():
            file.close()


def _span(part: slice, size: int, name: str) -> tuple[int, int]:
    start, stop, step = part.indices(size)
    if step != 1:
        raise ValueError(f"{name}: slices with a step are not views")
    return start, max(start, stop)


def _byte_span(columns: slice, info: TensorInfo) -> slice:
    stored = FORMATS[info.type]
    start, stop = _span(columns, info.shape[-1], info.name)
    if start % stored.block_elements or stop % stored.block_elements:
        raise ValueError(
            f"{info.name}: columns {start}:{stop} cut blocks of {stored.block_elements} "
            f"elements ({info.type})"
        )
    return slice(stored.nbytes(start), stored.nbytes(stop))


def count_elements(shape: tuple[int, ...]) -> int:
    """Product of the dimensions; ValueError once it passes any file's size. That of the others
    counts where one is 0: rows without elements have a size, too."""
    elements = 1
    for size in shape:
        elements *= size or 1
        if elements > _MAX_ELEMENTS:
            raise ValueError(f"the shape {list(shape)} is impossibly large")
    return 0 if 0 in shape else elements
