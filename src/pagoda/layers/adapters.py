"""Low-rank adapters (LoRA, arXiv 2106.09685) beside linear layers: many are resident, and each
token of a step has one or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pagoda.kernels import ops


@dataclass
class StepAdapters:
    """What the model's layers share of a step."""

    slots: torch.Tensor | None = None
    """int32 [tokens], as `ForwardBatch.adapters` has them; None adds nothing."""


class ShardAdapter(NamedTuple):
    """What an adapter does to one of the matrices that are stacked in a layer."""

    shard: int
    first: int
    """The first of the slot's ranks that are its own."""
    a: torch.Tensor
    """fp32 [rank, this rank's columns]."""
    b: torch.Tensor
    """fp32 [this rank's rows of the shard, rank], scaled."""


class AdapterRoom:
    """Slots for the adapters of one linear layer. A slot is empty until it is filled."""

    def __init__(
        self,
        step: StepAdapters,
        num_slots: int,
        max_rank: int,
        columns: int,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        device: str,
    ):
        self._step = step
        self._sizes = sizes
        shape = (num_slots, len(sizes), max_rank, columns)
        self._a = torch.zeros(shape, dtype=dtype, device=device)
        self._b = torch.zeros((num_slots, max_rank, sum(sizes)), dtype=dtype, device=device)
        self._ranks = torch.zeros(num_slots, dtype=torch.int32, device=device)

    def fill(self, slot: int, parts: Sequence[ShardAdapter]) -> None:
        """Replace what the slot holds; without parts it changes nothing in this layer."""
        self._a[slot].zero_()
        self._b[slot].zero_()
        for shard, first, a, b in parts:
            start, last = sum(self._sizes[:shard]), first + len(a)
            self._a[slot, shard, first:last].copy_(a)
            self._b[slot, first:last, start : start + self._sizes[shard]].copy_(b.t())
        self._ranks[slot] = max((part.first + len(part.a) for part in parts), default=0)

    def add(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """To out [tokens, all sizes], in place, what the tokens' adapters make of x [tokens,
        columns]."""
        slots = self._step.slots
        if slots is not None:
            ops.add_adapters(out, x, self._a, self._b, self._ranks, slots, self._sizes)

    @property
    def nbytes(self) -> int:
        return self._a.nbytes + self._b.nbytes + self._ranks.nbytes
