"""Products of each head's part of a row with a matrix of the head's own."""

import torch

Tensor = torch.Tensor


def head_products(x: Tensor, weight: Tensor, kept: int, behind: Tensor | None) -> Tensor:
    """As `ops.head_products`; weight [heads, rows, columns]."""
    (tokens, heads, _), rows = x.shape, weight.shape[1]
    width = heads * (kept + rows)
    out = x.new_empty(tokens, width + (0 if behind is None else behind.shape[1]))
    of_heads = out[:, :width].view(tokens, heads, kept + rows)
    of_heads[:, :, :kept] = x[:, :, :kept]
    products = torch.bmm(x[:, :, kept:].transpose(0, 1), weight.transpose(1, 2))
    of_heads[:, :, kept:] = products.transpose(0, 1)
    if behind is not None:
        out[:, width:] = behind
    return out
