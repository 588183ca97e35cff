"""How the matrices of a mixture's experts are stored."""

from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, Self

import torch

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels import ops
from pagoda.quant.base import ShardSource
from pagoda.quant.packed import kept_storage, load_rows
from pagoda.quant.plain import PlainLinear
from pagoda.quant.select import linear_format, packs


class ExpertSizes(NamedTuple):
    """`count` experts with `parts` matrices [rows, columns] each."""

    count: int  # type: ignore[assignment]  # not a tuple's count of equals
    parts: int
    rows: int
    columns: int


class ExpertFormat(Protocol):
    """Holds the matrices of experts; shards are numbered expert by expert, part by part."""

    def load(self, shard: int, source: ShardSource) -> None:
        """Copy (and convert or repack) one matrix from the checkpoint."""

    def finalize(self) -> None:
        """Called once all shards are loaded."""

    def operand(self, bias: torch.Tensor | None) -> "ops.PlainExperts | ops.PackedExperts":
        """What `ops.mix_experts` takes; bias [count, parts * rows]."""

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """As `LinearFormat.map_tensors`."""

    @property
    def nbytes(self) -> int:
        """Bytes held after finalize."""


def expert_format(
    sizes: ExpertSizes, storages: tuple[str, ...], dtype: torch.dtype, device: str, *, packed: bool
) -> ExpertFormat:
    """Room for matrices whose shards are stored so; `dtype` is that of activations."""
    if packed and packs(storages, device):
        return PackedExpertFormat(sizes, storages, dtype, device)
    return PlainExpertFormat(sizes, storages, dtype, device)


# Where a matrix may begin in a file: a multiple of any system's pages.
_FILE_ALIGNMENT = 1 << 16


class PlainExpertFormat:
    """One dense matrix of all, in the dtype of activations."""

    def __init__(
        self, sizes: ExpertSizes, storages: tuple[str, ...], dtype: torch.dtype, device: str
    ):
        self._sizes = sizes
        linear = linear_format(storages, device, packed=False)
        assert isinstance(linear, PlainLinear)
        self._linear = linear
        shards = (sizes.rows,) * len(storages)
        self._linear.create(shards, storages, sizes.columns, dtype, device)

    def load(self, shard: int, source: ShardSource) -> None:
        self._linear.load(shard, source)

    def finalize(self) -> None:
        self._linear.finalize()

    def operand(self, bias: torch.Tensor | None) -> ops.PlainExperts:
        sizes = self._sizes
        weight = self._linear.weight.view(sizes.count, sizes.parts * sizes.rows, sizes.columns)
        return ops.PlainExperts(weight, bias)

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        mapped = copy(self)
        mapped._linear = self._linear.map_tensors(change)
        return mapped

    @property
    def nbytes(self) -> int:
        return self._linear.nbytes


class PackedExpertFormat:
    """Packed in the checkpoint's own bits: one matrix for each part of all experts. On a CPU they
    may be in a file."""

    def __init__(
        self, sizes: ExpertSizes, storages: tuple[str, ...], dtype: torch.dtype, device: str
    ):
        self._sizes = sizes
        self._parts: list[Any] = []
        self.next_streamed: tuple[Any, ...] = ()
        """Matrices in files that a step reads after these."""
        self._files: object | None = None
        for part in range(sizes.parts):
            stored = storages[part :: sizes.parts]
            kinds = {kept_storage(name, sizes.columns, device, dtype) for name in stored}
            if len(kinds) > 1 or not set(storages) <= ops.DEQUANTIZABLE:
                raise UnsupportedModelError(
                    f"Experts stored as {', '.join(sorted(set(storages)))} are not supported; "
                    "take another version of the model."
                )
            (kept,) = kinds
            matrix = ops.packed_experts_matrix(kept, sizes.count, sizes.rows, sizes.columns, device)
            self._parts.append(matrix)

    def load(self, shard: int, source: ShardSource) -> None:
        expert, part = divmod(shard, self._sizes.parts)
        matrix, rows = self._parts[part], self._sizes.rows
        load_rows(
            lambda row, raw: ops.load_packed_expert(matrix, expert, rows, row, raw),
            source,
            matrix.storage,
        )

    def finalize(self) -> None:
        for matrix in self._parts:
            ops.settle_packed(matrix)

    def operand(self, bias: torch.Tensor | None) -> ops.PackedExperts:
        sizes = self._sizes
        return ops.PackedExperts(
            tuple(self._parts), sizes.rows, sizes.count, bias, self.next_streamed
        )

    @property
    def matrices(self) -> tuple[Any, ...]:
        return tuple(self._parts)

    @property
    def storages(self) -> tuple[str, ...]:
        """Storage formats of the parts."""
        return tuple(matrix.storage for matrix in self._parts)

    @property
    def file_bytes(self) -> int:
        """The size of their file."""
        return max(start + int(matrix.nbytes) for start, matrix in self._places())

    def write(self, file: BinaryIO) -> None:
        """Write all parts to an empty file; OSError where that fails."""
        for start, matrix in self._places():
            file.seek(start)
            file.write(matrix.panels)

    def map(self, path: Path, files: object) -> None:
        """Let the parts be those of a file that `write` wrote; OSError where that fails. `files`
        lives as long as they do."""
        self._parts = [ops.mapped_packed(matrix, path, start) for start, matrix in self._places()]
        self._files = files

    @property
    def in_file(self) -> bool:
        return self._files is not None

    def _places(self) -> Iterator[tuple[int, Any]]:
        """The parts, and where each begins in the file."""
        start = 0
        for matrix in self._parts:
            yield start, matrix
            start += -(-matrix.nbytes // _FILE_ALIGNMENT) * _FILE_ALIGNMENT

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        mapped = copy(self)
        mapped._parts = [matrix.map_tensors(change) for matrix in self._parts]
        return mapped

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._parts)
