"""Low-rank adapters, beside the products that they add to."""

from typing import NamedTuple

import torch

Tensor = torch.Tensor


class AdapterTensors(NamedTuple):
    """A and B of several slots, as `Ops.add_adapters` has them."""

    a: Tensor
    b: Tensor
    ranks: Tensor


class ExpertAdapters(NamedTuple):
    """Adapters beside the experts of a mixture: each of a token's slots has a place for every
    expert, and expert e of slot s has the place s * experts + e."""

    slots: Tensor
    """int32 [tokens], negative: none."""
    up: AdapterTensors
    down: AdapterTensors


def add_adapters(
    out: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    ranks: Tensor,
    slots: Tensor,
    sizes: tuple[int, ...],
) -> None:
    """As `Ops.add_adapters`; a product for each row, so that none depends on the others."""
    for row, slot in enumerate(slots.tolist()):
        rank = 0 if slot < 0 else int(ranks[slot])
        if not rank:
            continue
        low = torch.mv(a[slot, :, :rank].float().flatten(0, 1), x[row].float()).view(-1, rank)
        shards = b[slot, :rank].float().split(list(sizes), dim=1)
        added = [h @ shard for h, shard in zip(low, shards, strict=True)]
        out[row] = (out[row].float() + torch.cat(added)).to(out.dtype)


def adapt(out: Tensor, x: Tensor, tensors: AdapterTensors, places: Tensor) -> None:
    """`add_adapters` to out [rows, all sizes] of x [rows, columns], by slots `places` int32 [rows],
    with shards of one size."""
    shards = tensors.a.shape[1]
    sizes = (out.shape[1] // shards,) * shards
    add_adapters(out, x, *tensors, places, sizes)
