"""Weights in the checkpoint's own bits, or the nearest, packed for the native kernels of a CPU."""

from itertools import accumulate, groupby
from typing import Any

import torch

from pagoda.kernels import ops
from pagoda.quant.base import LinearFormat, ShardSource
from pagoda.quant.repack import repacked
from pagoda.weights.formats import held_as

# Elements converted at a time where a format has no packed form.
_CHUNK_ELEMENTS = 1 << 20


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
        kept = [held_as(name, in_features, ops.packed_storages()) for name in storages]
        for storage, run in groupby(zip(kept, shard_sizes, strict=True), lambda pair: pair[0]):
            sizes = [size for _, size in run]
            matrix = ops.packed_matrix(storage, sum(sizes), in_features)
            self._matrices.append(matrix)
            starts = accumulate(sizes[:-1], initial=0)
            self._places += [(matrix, start) for start in starts]

    def load(self, shard: int, source: ShardSource) -> None:
        matrix, first_row = self._places[shard]
        raw = source.read()
        if source.storage == matrix.storage:
            ops.load_packed(matrix, first_row, raw)
            return
        step = max(1, _CHUNK_ELEMENTS // max(1, source.in_features))
        for start in range(0, source.out_features, step):
            part = repacked(raw[start : start + step], source.storage, matrix.storage)
            ops.load_packed(matrix, first_row + start, part)

    def finalize(self) -> None:
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

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._matrices)
