"""What every layer is built with: dtype, device, this rank's place, shared rotary tables."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pagoda.base.errors import ConfigError
from pagoda.kernels.attention.select import AttentionBackends
from pagoda.layers.adapters import StepAdapters
from pagoda.layers.rotary import RotaryTables


@dataclass
class Parallel:
    """This rank's place among the devices that a layer is split over.

    The hooks stay None on one rank; then nothing is exchanged.
    """

    rank: int = 0
    size: int = 1
    reduce: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Sum of all ranks' tensors."""
    gather: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    """All ranks' parts [rows, columns] side by side in rank order, so many columns in all; as
    `share_rows` deals them out."""

    @property
    def sees(self) -> bool:
        """Whether it holds the vision tower: the first rank encodes pictures for all."""
        return self.rank == 0

    def share(self, total: int, what: str) -> slice:
        """This rank's equal part of `total`; ConfigError where it does not divide."""
        if total % self.size:
            raise ConfigError(
                f"{total} {what} cannot be split over {self.size} devices; "
                "choose a --tensor-parallel-size that divides it."
            )
        part = total // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def share_kv_heads(self, num_kv_heads: int) -> slice:
        """This rank's KV heads; where there are fewer than ranks, neighbours hold the same."""
        if num_kv_heads >= self.size:
            return self.share(num_kv_heads, "KV heads")
        if self.size % num_kv_heads:
            raise ConfigError(
                f"{num_kv_heads} KV heads cannot be repeated over {self.size} devices; "
                f"choose a --tensor-parallel-size that is a multiple of {num_kv_heads}."
            )
        head = self.rank * num_kv_heads // self.size
        return slice(head, head + 1)

    def share_rows(self, total: int) -> slice:
        """This rank's part of a vocabulary; the last rank's may be shorter."""
        part = -(-total // self.size)
        return slice(min(self.rank * part, total), min((self.rank + 1) * part, total))

    def summed(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' partial results, of any shape; one rank's own where it is alone."""
        return partial if self.reduce is None else self.reduce(partial)

    def gathered(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """The ranks' parts [rows, this rank's columns] side by side: [rows, columns]."""
        return part if self.gather is None else self.gather(part, columns)


@dataclass
class LayerContext:
    dtype: torch.dtype
    """Type of activations and plain weights."""
    device: str
    parallel: Parallel
    rotary: RotaryTables
    attention: AttentionBackends
    packed: bool = False
    """Weights are packed for the device's kernels; on a CPU activations are fp32 then."""
    adapters: StepAdapters = field(default_factory=StepAdapters)

    @property
    def whole(self) -> "LayerContext":
        """For a layer that a rank holds without the others."""
        return self if self.parallel.size == 1 else replace(self, parallel=Parallel())
