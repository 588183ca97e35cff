"""Linear layers, whole or split over ranks; how weights are stored is their format's affair."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from pagoda.layers.adapters import AdapterRoom
from pagoda.layers.context import LayerContext
from pagoda.layers.loading import LoadTarget, Slices, WeightedLayer, count, load_vector
from pagoda.quant.base import LinearFormat, ShardSource
from pagoda.quant.host import staging_bytes
from pagoda.quant.select import linear_format


@dataclass(frozen=True)
class Shard:
    """One checkpoint matrix among those stacked into a merged layer."""

    rows: int
    """Rows of the whole matrix."""
    parts: Slices
    """The rows that this rank holds."""

    @classmethod
    def whole(cls, rows: int) -> Self:
        """A matrix that every rank holds."""
        return cls(rows, (slice(0, rows),))

    @classmethod
    def of_heads(cls, num_heads: int, held: Slices, size: int) -> Self:
        """A matrix of heads with `size` rows each, of which this rank holds some."""
        parts = tuple(slice(heads.start * size, heads.stop * size) for heads in held)
        return cls(num_heads * size, parts)

    @property
    def local_rows(self) -> int:
        return count(self.parts)


class Linear(WeightedLayer):
    """Shards stacked on rows, with this rank's columns of them; `ColumnLinear` and `RowLinear`
    say which rank has what."""

    format: LinearFormat
    """Chosen when loading starts, by how the shards are stored."""
    adapters: AdapterRoom | None = None
    """Where adapters add to the product."""

    def __init__(
        self,
        context: LayerContext,
        in_features: int,
        columns: Slices,
        shards: tuple[Shard, ...],
        bias: bool,
        unbiased: Collection[int] = (),
    ):
        """`unbiased`: shards whose part of the bias is 0, and in no checkpoint."""
        super().__init__()
        self.in_features = in_features
        self._context = context
        self._columns = columns
        self._width = count(columns)
        self._shards = shards
        self._unbiased = unbiased
        self.sizes = tuple(shard.local_rows for shard in shards)
        self.bias: torch.Tensor | None = None
        if bias:
            size = sum(self.sizes)
            self.bias = torch.zeros(size, dtype=context.dtype, device=context.device)

    @property
    def width(self) -> int:
        """Columns of this rank."""
        return self._width

    @property
    def params(self) -> tuple[str, ...]:
        return ("weight",) if self.bias is None else ("weight", "bias")

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        if param == "bias":
            assert self.bias is not None  # `params` lists it only then
            parts = self.bias.split(list(self.sizes))
            return tuple(
                LoadTarget((shard.rows,), partial(load_vector, part), rows=shard.parts)
                for index, (shard, part) in enumerate(zip(self._shards, parts, strict=True))
                if index not in self._unbiased
            )
        return tuple(
            LoadTarget(
                (shard.rows, self.in_features),
                partial(self._load, index),
                rows=shard.parts,
                columns=None if self._width == self.in_features else self._columns,
            )
            for index, shard in enumerate(self._shards)
        )

    def create(self, storages: tuple[str, ...]) -> None:
        context = self._context
        self.format = linear_format(storages, context.device, packed=context.packed)
        self.format.create(self.sizes, storages, self._width, context.dtype, context.device)

    def _load(self, shard: int, source: ShardSource) -> None:
        self.format.load(shard, source)

    def finalize(self) -> None:
        self.format.finalize()
        if self.host is not None:
            self.format = self.host.keep(self.format)

    def make_room(self, num_slots: int, max_rank: int, dtype: torch.dtype) -> None:
        """Let so many adapters be loaded beside the weight, as numbers of `dtype`."""
        context = self._context
        self.adapters = AdapterRoom(
            context.adapters, num_slots, max_rank, self._width, self.sizes, dtype, context.device
        )

    def _applied(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = self.resident.apply(x, bias)
        if self.adapters is not None:
            self.adapters.add(out, x)
        return out

    @property
    def resident(self) -> LinearFormat:
        """The weight on the device, for one product."""
        return self.format if self.host is None else self.host.fetched(self.format)[0]

    @property
    def staging_bytes(self) -> int:
        return 0 if self.host is None else staging_bytes(self.format)

    @property
    def nbytes(self) -> int:
        return self.format.nbytes + (0 if self.bias is None else self.bias.nbytes)


class ColumnLinear(Linear):
    """Each rank holds some output rows of every shard and all columns; nothing is exchanged.

    With parts that span whole shards it is a replicated layer. With `columns` it is those of wider
    matrices, which have `in_features`.
    """

    def __init__(
        self,
        context: LayerContext,
        in_features: int,
        shards: tuple[Shard, ...],
        bias: bool = False,
        columns: Slices | None = None,
        unbiased: Collection[int] = (),
    ):
        whole = (slice(0, in_features),)
        super().__init__(context, in_features, columns or whole, shards, bias, unbiased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, columns] -> [tokens, this rank's rows of all shards]."""
        return self._applied(x, self.bias)


class ExactLinear(ColumnLinear):
    """A layer that every rank holds whole; on a CPU whose weights are packed in fp32 throughout, so
    that rounding chooses nothing else."""

    def create(self, storages: tuple[str, ...]) -> None:
        native = self._context.packed and self._context.device == "cpu"
        super().create(("F32",) * len(storages) if native else storages)


def replicated(
    context: LayerContext, in_features: int, out_features: int, bias: bool = False
) -> ColumnLinear:
    """A layer that every rank holds whole."""
    return ColumnLinear(context, in_features, (Shard.whole(out_features),), bias)


class RowLinear(Linear):
    """Each rank holds some input columns (`columns`, or its equal part); the ranks' results add up
    (`Parallel.reduce`)."""

    def __init__(
        self,
        context: LayerContext,
        in_features: int,
        out_features: int,
        bias: bool = False,
        columns: Slices | None = None,
    ):
        columns = columns or (context.parallel.share(in_features, "input features"),)
        super().__init__(context, in_features, columns, (Shard.whole(out_features),), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, this rank's columns] -> [tokens, out_features]."""
        return self._context.parallel.summed(self.partial(x))

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of `forward`'s sum: x [tokens, columns] -> [tokens, out_features]."""
        return self._applied(x, self.bias if self._context.parallel.rank == 0 else None)
