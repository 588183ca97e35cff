"""Mamba-2's selective state space (arXiv 2405.21060), token by token or many at once.

Of each layer a slot keeps, in fp32, the state [heads, state_size, head_dim]. Channels are x's
heads, then the groups of b, then those of c; equal runs of heads share a group.
"""

import torch
import torch.nn.functional as F

from pagoda.kernels.ref.delta_net import Decay, StateSlots, carry, decays, parts, per_value_head

Tensor = torch.Tensor


def state_space(
    xbc: Tensor, decay: Decay, skip: Tensor, state: Tensor, slots: StateSlots
) -> Tensor:
    """As `Ops.state_space`."""
    heads, size, head_dim = state.shape[1:]
    inner = heads * head_dim
    group_columns = (xbc.shape[1] - inner) // 2
    x, b, c = xbc.float().split((inner, group_columns, group_columns), dim=1)
    x = x.unflatten(1, (heads, head_dim))
    shared = heads * size // group_columns
    b, c = (per_value_head(y.unflatten(1, (-1, size)), shared, False) for y in (b, c))
    step = F.softplus(decay.x.float() + decay.bias)
    told, log_decay = x * step[..., None], decay.rate * step
    out = torch.zeros_like(x)
    for part in parts(slots, xbc.device):
        now, end = part.before(state), 0
        for rows in part.rows.split(part.chunks(), dim=1):
            # [requests, heads, tokens, ...]
            q, k, d, log = (y[rows].transpose(1, 2) for y in (c, b, told, log_decay))
            result, now = carry(now, q, k, d, *decays(log))
            out[rows] = result.transpose(1, 2) + skip[:, None] * x[rows]
            end += rows.shape[1]
            part.keep(state, end, now)
    return out.flatten(1).to(xbc.dtype)
