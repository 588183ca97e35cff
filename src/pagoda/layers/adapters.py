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
    expert: int = 0
    """Among those that this rank holds; 0 in a layer without experts."""


class AdapterRoom:
    """Slots for the adapters of one linear layer, or of a layer of each of `experts`. A slot is
    empty until it is filled."""

    def __init__(
        self,
        step: StepAdapters,
        num_slots: int,
        max_rank: int,
        columns: int,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        device: str,
        experts: int = 1,
    ):
        self._step = step
        self._sizes = sizes
        self._experts = experts
        places = num_slots * experts
        # Pages of slots that nothing was loaded into are never touched, and take no memory then.
        shape = (places, len(sizes), max_rank, columns)
        self._a = torch.zeros(shape, dtype=dtype, device=device)
        self._b = torch.zeros((places, max_rank, sum(sizes)), dtype=dtype, device=device)
        self._ranks = torch.zeros(places, dtype=torch.int32, device=device)

    def fill(self, slot: int, parts: Sequence[ShardAdapter]) -> None:
        """Replace what the slot holds; without parts it changes nothing in this layer."""
        begin = slot * self._experts
        ranks = [0] * self._experts
        used = self._ranks[begin : begin + self._experts].tolist()
        for place, rank in enumerate(used, begin):
            if rank:
                self._a[place].zero_()
                self._b[place].zero_()
        for shard, first, a, b, expert in parts:
            start, last = sum(self._sizes[:shard]), first + len(a)
            self._a[begin + expert, shard, first:last].copy_(a)
            self._b[begin + expert, first:last, start : start + self._sizes[shard]].copy_(b.t())
            ranks[expert] = max(ranks[expert], last)
        self._ranks[begin : begin + self._experts] = torch.tensor(ranks, dtype=torch.int32)

    def add(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """To out [tokens, all sizes], in place, what the tokens' adapters make of x [tokens,
        columns]."""
        slots = self._step.slots
        if slots is not None:
            ops.add_adapters(out, x, *self.tensors, slots, self._sizes)

    @property
    def tensors(self) -> ops.AdapterTensors:
        """What all slots hold: `experts` places of each."""
        return ops.AdapterTensors(self._a, self._b, self._ranks)

    @property
    def nbytes(self) -> int:
        return self._a.nbytes + self._b.nbytes + self._ranks.nbytes


def beside_experts(
    step: StepAdapters, up: AdapterRoom | None, down: AdapterRoom | None
) -> ops.ExpertAdapters | None:
    """What a mixture takes of a step's adapters; None where they add nothing."""
    if step.slots is None or up is None or down is None:
        return None
    return ops.ExpertAdapters(step.slots, up.tensors, down.tensors)
