"""Random adapters, and what they add to a row by plain products in fp64."""

from typing import NamedTuple

import torch

from pagoda.kernels import ops

MAX_RANK = 12
RANKS = (12, 0, 3, 8)
"""Of the slots; the second does nothing to this layer."""


class Case(NamedTuple):
    x: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    slots: torch.Tensor
    sizes: tuple[int, ...]

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        return self.x, self.a, self.b, self.ranks, self.slots


def adapter_case(
    tokens: int, columns: int, sizes: tuple[int, ...], dtype: torch.dtype, device: str = "cpu"
) -> Case:
    """Slots in turn, and rows without one; NaN where no rank of a slot lies."""
    shards, ranks = len(sizes), torch.tensor(RANKS, dtype=torch.int32)
    a = torch.randn(len(RANKS), shards, MAX_RANK, columns) / columns**0.5
    b = torch.randn(len(RANKS), MAX_RANK, sum(sizes))
    for slot, rank in enumerate(RANKS):
        a[slot, :, rank:] = torch.nan
        b[slot, rank:] = torch.nan
    slots = torch.arange(tokens, dtype=torch.int32) * 3 % (len(RANKS) + 1) - 1
    x = torch.randn(tokens, columns)
    wide = (x.to(dtype), a.to(dtype), b.to(dtype), ranks, slots)
    return Case(*(part.to(device) for part in wide), sizes)


def expected_of(out: torch.Tensor, case: Case) -> torch.Tensor:
    """fp64 [tokens, sum(sizes)]: `out` with what the adapters add."""
    wide = out.double()
    for row, slot in enumerate(case.slots.tolist()):
        if slot < 0:
            continue
        rank, first = RANKS[slot], 0
        for shard, size in enumerate(case.sizes):
            a = case.a[slot, shard, :rank].double()
            b = case.b[slot, :rank, first : first + size].double()
            wide[row, first : first + size] += b.T @ (a @ case.x[row].double())
            first += size
    return wide


def expert_adapters(
    tokens: int, count: int, up: ops.PlainExperts, down: ops.PlainExperts, parts: int = 2
) -> ops.ExpertAdapters:
    """Beside `count` experts; some places of each slot do nothing."""
    tensors = []
    for experts, shards in ((up, parts), (down, 1)):
        rows, columns = experts.weight.shape[1:]
        case = adapter_case(0, columns, (rows // shards,) * shards, torch.float32)
        places = len(RANKS) * count
        chosen = torch.arange(places) * 3 % len(RANKS)
        tensors.append(
            ops.AdapterTensors(
                case.a[chosen].contiguous(), case.b[chosen].contiguous(), case.ranks[chosen]
            )
        )
    slots = torch.arange(tokens, dtype=torch.int32) * 3 % (len(RANKS) + 1) - 1
    return ops.ExpertAdapters(slots, *tensors)


def merged(experts: ops.PlainExperts, tensors: ops.AdapterTensors, slot: int) -> ops.PlainExperts:
    """fp64: the experts that a slot makes of them."""
    weight = experts.weight.double().clone()
    shards = tensors.a.shape[1]
    for expert in range(len(weight) if slot >= 0 else 0):
        place = slot * len(weight) + expert
        rank = int(tensors.ranks[place])
        for shard, rows in enumerate(weight[expert].chunk(shards)):
            b = tensors.b[place, :rank].double().chunk(shards, dim=1)[shard]
            rows += b.T @ tensors.a[place, shard, :rank].double()
    bias = None if experts.bias is None else experts.bias.double()
    return ops.PlainExperts(weight, bias)
