"""Prompts of gated delta nets by the library's products, for GPUs on which Triton's use no tensor
cores and would go token by token.

What tokens of a chunk do to each other is worked out for many chunks at once; only the state goes
from chunk to chunk, in two products each.
"""

import torch
import torch.nn.functional as F

from pagoda.kernels.ref.delta_net import Decay, StateSlots, parts, per_value_head, unit

Tensor = torch.Tensor

_CHUNK = 64
_TOGETHER = 8
"""Chunks at once: those of more would take more memory than they save time."""


def rule_of_prompts(
    qkv: Tensor,
    strength: Tensor,
    decay: Decay,
    state: Tensor,
    slots: StateSlots,
    out: Tensor,
    *,
    longer_than: int,
    tiled: bool,
) -> None:
    """As `Ops.gated_delta_rule`, of requests that have more tokens than that and no drafts, into
    their rows of out [tokens, value_heads * value_dim]. Waits for the device."""
    for part in parts(slots, qkv.device):
        if part.rows.shape[1] <= longer_than or part.num_kept > 1:
            continue
        now, end = part.before(state), 0
        for rows in part.rows.split(_CHUNK * _TOGETHER, dim=1):
            chosen = Decay(decay.x[rows], decay.rate, decay.bias)
            told, now = _chunks(now, qkv[rows], strength[rows], chosen, tiled)
            out[rows] = told.to(out.dtype)
            end += rows.shape[1]
            part.keep(state, end, now)


def _chunks(
    state: Tensor, qkv: Tensor, strength: Tensor, decay: Decay, tiled: bool
) -> tuple[Tensor, Tensor]:
    """(results [requests, tokens, value_heads * value_dim], the next state) in fp32, for state
    [requests, value_heads, key_dim, value_dim] and qkv [requests, tokens, channels]."""
    heads, key_dim, value_dim = state.shape[1:]
    keys = (qkv.shape[2] - heads * value_dim) // 2
    q, k, v = qkv.float().split((keys, keys, heads * value_dim), dim=2)
    count = heads * key_dim // keys
    q, k = (
        per_value_head(unit(x.unflatten(2, (-1, key_dim))).flatten(0, 1), count, tiled)
        .unflatten(0, qkv.shape[:2])
        for x in (q, k)
    )  # fmt: skip
    log_decay = decay.rate * F.softplus(decay.x.float() + decay.bias)
    q, k, v, total, beta = (
        _by_chunk(x)
        for x in (q * key_dim**-0.5, k, v.unflatten(2, (heads, value_dim)), log_decay,
                  strength.float().sigmoid())
    )  # fmt: skip
    total = total.cumsum(-1)
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    decayed, beta = total.exp()[..., None], beta[..., None]
    # The d of `kernels.ref.delta_net._chunk` are `own` less `seen` times the state before.
    influence = beta * between * (k @ k.mT)
    both = torch.linalg.solve_triangular(
        influence, beta * torch.cat((v, decayed * k), dim=-1), upper=False, unitriangular=True
    )
    own, seen = both.split((value_dim, key_dim), dim=-1)
    left = (between[..., -1, :, None] * k).mT
    before, d = [], []
    for chunk in range(q.shape[2]):
        before.append(state)
        d.append(own[:, :, chunk] - seen[:, :, chunk] @ state)
        state = decayed[:, :, chunk, -1:] * state + left[:, :, chunk] @ d[-1]
    told = decayed * (q @ torch.stack(before, 2)) + (between * (q @ k.mT)) @ torch.stack(d, 2)
    # [requests, heads, chunks, tokens of one, dim] -> [requests, tokens, heads * dim].
    return told.flatten(2, 3).transpose(1, 2)[:, : qkv.shape[1]].flatten(2), state


def _by_chunk(x: Tensor) -> Tensor:
    """[requests, tokens, heads, ...] -> [requests, heads, chunks, tokens of one, ...]. Zeros fill
    up the last chunk: such tokens change nothing."""
    missing = -x.shape[1] % _CHUNK
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    chunks: Tensor = padded.transpose(1, 2).unflatten(2, (-1, _CHUNK))
    return chunks
