"""Weights as they are: bf16, fp16 or fp32, kept in the dtype of activations."""

from collections.abc import Callable
from copy import copy
from typing import Self

import torch

from pagoda.base.errors import CheckpointError
from pagoda.kernels import ops
from pagoda.quant.base import LinearFormat, ShardSource

STORAGES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def check_range(weight: torch.Tensor) -> None:
    """CheckpointError where fp16, whose largest number is 65504, lost weights to infinity."""
    if weight.dtype == torch.float16 and not weight.isfinite().all():
        raise CheckpointError(
            "The checkpoint has weights beyond 65504, which float16 cannot hold; pass --dtype "
            "float32, or bfloat16 where the device has it."
        )


class PlainLinear(LinearFormat):
    """One dense matrix [out_features, in_features]."""

    weight: torch.Tensor

    def create(
        self,
        shard_sizes: tuple[int, ...],
        storages: tuple[str, ...],
        in_features: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.weight = torch.empty(sum(shard_sizes), in_features, dtype=dtype, device=device)
        self._shards = self.weight.split(list(shard_sizes))

    def load(self, shard: int, source: ShardSource) -> None:
        self._shards[shard].copy_(source.read().view(STORAGES[source.storage]))

    def finalize(self) -> None:
        check_range(self.weight)
        del self._shards

    def apply(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        return ops.matmul(x, self.weight, bias, out_dtype)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return ops.embed(index, self.weight)

    def map_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        mapped = copy(self)
        mapped.weight = change(self.weight)
        return mapped

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes
