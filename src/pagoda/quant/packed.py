"""Weights in the checkpoint's own bits, or the nearest, packed for the kernels of a CPU or GPU."""

from collections.abc import Callable
from copy import copy
from itertools import accumulate, groupby
from typing import Any, Self

import torch

from pagoda.kernels import ops
from pagoda.quant.base import LinearFormat, ShardSource
from pagoda.quant.plain import STORAGES
from pagoda.quant.repack import repacked
from pagoda.weights.formats import held_as

# Elements converted at a time where a format has no packed form.
_CHUNK_ELEMENTS = 1 << 20


def kept_storage(storage: str, columns: int, device: str, dtype: torch.dtype) -> str:
    """How rows of so many columns, stored so, are held in a packed matrix on `device`; in `dtype`
    where its kernels have nothing near."""
    kernels = ops.packed_storages(device)
    held = held_as(storage, columns, kernels)
    if held in kernels:
        return held
    (plain,) = (name for name, kind in STORAGES.items() if kind is dtype)
    return plain


def load_rows(load: Callable[[int, torch.Tensor], None], source: ShardSource, kept: str) -> None:
    """Call `load` with a first row and rows' bytes as `kept` has them, one run after another."""
    raw = source.read()
    if source.storage == kept:
        load(0, raw)
        return
    step = max(1, _CHUNK_ELEMENTS // max(1, source.in_features))
    for start in range(0, source.out_features, step):
        load(start, repacked(raw[start : start + step], source.storage, kept))


class PackedLinear(LinearFormat):
    """One packed matrix per run of shards that are stored alike."""

    def create(
        self,
        shard_sizes: tuple[int, ...],
        storages: tuple[str, ...],
        in_features: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self._dtype = dtype
        self._matrices: list[Any] = []
        self._places: list[tuple[Any, int]] = []
        kept = [kept_storage(name, in_features, device, dtype) for name in storages]
        for storage, run in groupby(zip(kept, shard_sizes, strict=True), lambda pair: pair[0]):
            sizes = [size for _, size in run]
            matrix = ops.packed_matrix(storage, sum(sizes), in_features, device)
            self._matrices.append(matrix)
            starts = accumulate(sizes[:-1], initial=0)
            self._places += [(matrix, start) for start in starts]

    def load(self, shard: int, source: ShardSource) -> None:
        matrix, first_row = self._places[shard]
        load_rows(
            lambda row, raw: ops.load_packed(matrix, first_row + row, raw), source, matrix.storage
        )

    def finalize(self) -> None:
        for matrix in self._matrices:
            ops.settle_packed(matrix)
        del self._places

    def apply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        return ops.packed_matmul(x, self._matrices, bias, out_dtype)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        (matrix,) = self._matrices  # a table is one shard
        return ops.packed_rows(index, matrix, self._dtype)

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        mapped = copy(self)
        mapped._matrices = [matrix.map_tensors(change) for matrix in self._matrices]
        return mapped

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._matrices)
