"""How a linear layer's weight is stored and multiplied: the seam behind every format."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True)
class ShardSource:
    """One checkpoint tensor (or one rank's slice of it) on its way into a layer."""

    storage: str
    """Storage format of the bytes: BF16, Q4_1, ..."""
    out_features: int
    in_features: int
    read: Callable[[], torch.Tensor]
    """uint8 [out_features, bytes per row], on the CPU and not to be written to; reading late
    keeps the peak at one tensor."""


class LinearFormat(ABC):
    """Holds the weight of one linear layer (bias apart) or embedding in one storage format.

    Life: create -> load per shard, in any order -> finalize -> apply.
    """

    @abstractmethod
    def create(
        self,
        shard_sizes: tuple[int, ...],
        storages: tuple[str, ...],
        in_features: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """Make room for shards of so many rows each, stacked in order; `storages` names how
        each lies in the checkpoint, `dtype` is that of activations."""

    @abstractmethod
    def load(self, shard: int, source: ShardSource) -> None:
        """Copy (and convert or repack) one shard from the checkpoint."""

    @abstractmethod
    def finalize(self) -> None:
        """Called once all shards are loaded: repack, drop what loading needed."""

    @abstractmethod
    def apply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """x [tokens, in_features] -> [tokens, out_features], in x's dtype or `out_dtype`."""

    @abstractmethod
    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Rows of the weight by int64 index [tokens]: [tokens, in_features], for embeddings."""

    @abstractmethod
    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The same weight, on what `change` makes of each tensor; called after finalize, and not on
        a CPU."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held after finalize."""
