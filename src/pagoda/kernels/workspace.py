"""Memory of a step's intermediate results."""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_ALIGNMENT = 64
_DTYPES = {
    torch.float32: np.float32,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint8: np.uint8,
}


class Workspace:
    """CPU memory for the outputs of a recorded step: their addresses stay when it is replayed.

    A block is handed out again as soon as the last view of its tensor is gone, as it will be at
    every replay. Blocks have room for the most rows of a step, whatever its number while recording.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._blocks: list[np.ndarray] = []
        self._growth = 1.0
        self._used = 0  # bytes of a block, at most

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def poison(self) -> None:
        """Fill what was used so far with NaN: what a replay does not write, it cannot get right."""
        for block in self._blocks:
            block[: self._used].view(np.float32)[:] = np.nan

    @contextmanager
    def serving(self, rows: int, max_rows: int) -> Iterator[None]:
        """Let `empty` take memory from here; its outputs have `rows` rows now, later up to
        `max_rows`."""
        global _serving
        before, self._growth = _serving, max_rows / rows
        _serving = self
        try:
            yield
        finally:
            _serving = before

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `empty`; its storage has room for the most rows (`all_rows`)."""
        element = np.dtype(_DTYPES[dtype])
        count = math.prod(shape)
        block = self._block(math.ceil(count * self._growth) * element.itemsize)
        self._used = max(self._used, _aligned(count * element.itemsize))
        view = block.view(element)
        # torch keeps the view as long as any tensor on its memory.
        weakref.finalize(view, self._free.append, block).atexit = False
        return torch.from_numpy(view)[:count].view(shape)

    def _block(self, nbytes: int) -> np.ndarray:
        fitting = [i for i, block in enumerate(self._free) if block.nbytes >= nbytes]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        size = _aligned(nbytes)
        memory = np.empty(size + _ALIGNMENT, np.uint8)  # not touched before it is used
        start = -memory.ctypes.data % _ALIGNMENT
        self._blocks.append(memory[start : start + size])
        return self._blocks[-1]


def _aligned(nbytes: int) -> int:
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT


def all_rows(tensor: torch.Tensor, max_rows: int) -> torch.Tensor:
    """A contiguous tensor [rows, ...] of a workspace as [max_rows, ...]: with the rows that later
    steps may have."""
    return tensor.as_strided((max_rows, *tensor.shape[1:]), tensor.stride())


_serving: Workspace | None = None


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An uninitialised tensor [rows, ...] on the CPU whose first dimension is a step's rows, from
    the workspace that is serving or from torch."""
    if _serving is None:
        return torch.empty(shape, dtype=dtype)
    return _serving.take(shape, dtype)
