"""Attention of texts to themselves, both ways, with no cache."""

from itertools import pairwise

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def encoder_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """As `Ops.encoder_attention`."""
    out = q.new_zeros(q.shape)
    # One request at a time: padding them to one length would cost more, and change the sums.
    for begin, end in pairwise(query_start.tolist()):
        if end > begin:
            one, keys, values = (x[None, begin:end].transpose(1, 2) for x in (q, k, v))
            mask = None if window is None else _near(end - begin, window, q.device)
            attended = F.scaled_dot_product_attention(
                one, keys, values, attn_mask=mask, scale=scale
            )
            out[begin:end] = attended[0].transpose(0, 1)
    return out


def patch_attention(
    q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
) -> Tensor:
    """As `Ops.patch_attention`."""
    return encoder_attention(q, k, v, query_start, scale=scale)


def _near(count: int, window: int, device: torch.device) -> Tensor:
    places = torch.arange(count, device=device)
    return (places[:, None] - places).abs() < window
