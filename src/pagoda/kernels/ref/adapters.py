"""Low-rank adapters, beside the products that they add to."""

import torch


def add_adapters(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    ranks: torch.Tensor,
    slots: torch.Tensor,
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
