"""How layers take their weights: each says what it needs, the loader brings it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels import ops
from pagoda.quant.base import ShardSource
from pagoda.quant.host import HostWeights
from pagoda.quant.plain import STORAGES, check_range

Slices = tuple[slice, ...]
"""Rows or columns that a rank holds, in the order in which it holds them."""


def count(slices: Slices) -> int:
    """How many rows or columns they are together."""
    total: int = sum(each.stop - each.start for each in slices)
    return total


@dataclass(frozen=True)
class LoadTarget:
    """Where one checkpoint tensor goes, and which part of it this rank takes."""

    shape: tuple[int, ...]
    """Shape of the whole tensor in the checkpoint."""
    load: Callable[[ShardSource], None]
    rows: Slices | None = None
    """Which parts of the first dimension, in elements; None takes all."""
    columns: Slices | None = None
    expert: int | None = None
    """Whose matrix or vector it is; `shape` is then that of this one alone."""


class WeightedLayer(nn.Module, ABC):
    """A layer with weights of its own (not those of its children)."""

    host: HostWeights | None = None
    """Where its weight stays from `finalize` on, if that is not the device; biases are there."""

    @property
    @abstractmethod
    def params(self) -> tuple[str, ...]:
        """Names that weight rules may use: `weight`, `bias`."""

    @abstractmethod
    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        """Where the shards of `param` go, one target each; valid before `create`.

        Of experts' only those that this rank holds, an expert's one after the other.
        """

    def create(self, storages: tuple[str, ...]) -> None:
        """Make room for the weight, whose targets are stored so; a vector has its room already."""

    def finalize(self) -> None:
        """Called when all its targets are loaded."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its weights."""


def load_vector(target: torch.Tensor, source: ShardSource) -> None:
    """Copy a bias or a norm's weight into target [size]; its elements arrive as rows of one
    column."""
    if source.storage not in STORAGES:
        raise UnsupportedModelError(
            f"A vector stored as {source.storage} is not supported; convert the model anew."
        )
    target.copy_(ops.dequantize(source.read(), source.storage, target.dtype).flatten())
    check_range(target)
