"""Gated delta nets (arXiv 2412.06464): the convolution in front, and the rule itself.

Of each layer a slot keeps, in fp32: the convolution's last inputs [width - 1, channels], oldest
first, and the state [value_heads, key_dim, value_dim]. Channels are q's, k's and v's heads in this
order. Columns of the state (value_dim, innermost) never mix, so kernels take vectors of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

# Tokens whose influence on each other is solved for at once.
_CHUNK = 64
_EPS = 1e-6  # of q's and k's lengths, as in the reference implementations


class StateSlots(NamedTuple):
    """Which slots the requests of a step read and write: `layers.batch.StateInputs`, with the
    batch's `query_start` and `kv_lens`."""

    read: Tensor
    write: Tensor
    query_start: Tensor
    kv_lens: Tensor
    drafts: bool = False


class Decay(NamedTuple):
    """A value head's state shrinks by exp(rate * softplus(x + bias)) at each token."""

    x: Tensor
    """[tokens, value_heads]."""
    rate: Tensor
    """fp32 [value_heads], negative."""
    bias: Tensor
    """fp32 [value_heads]."""


def causal_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    slots: StateSlots,
    *,
    bias: Tensor | None = None,
    silu: bool = True,
) -> Tensor:
    """As `Ops.causal_conv`."""
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    width = weight.shape[0]
    for part in parts(slots, x.device):
        window = torch.cat((part.before(state), x[part.rows].float()), dim=1)
        length = part.rows.shape[1]
        taps = (weight[i] * window[:, i : i + length] for i in range(width))
        total = sum(taps, start=torch.zeros((), device=x.device) if bias is None else bias)
        out[part.rows] = (F.silu(total) if silu else total).to(x.dtype)
        for end in range(length - part.num_kept + 1, length + 1):
            part.keep(state, end, window[:, end : end + width - 1])
    return out


def gated_delta_rule(
    qkv: Tensor, strength: Tensor, decay: Decay, state: Tensor, slots: StateSlots, *, tiled: bool
) -> Tensor:
    """As `Ops.gated_delta_rule`."""
    heads, key_dim, value_dim = state.shape[1:]
    keys = (qkv.shape[1] - heads * value_dim) // 2
    q, k, v = qkv.float().split((keys, keys, heads * value_dim), dim=1)
    shared = heads * key_dim // keys
    q, k = (per_value_head(unit(x.unflatten(1, (-1, key_dim))), shared, tiled) for x in (q, k))
    q = q * key_dim**-0.5
    v = v.unflatten(1, (heads, value_dim))
    log_decay = decay.rate * F.softplus(decay.x.float() + decay.bias)
    beta = strength.float().sigmoid()
    out = torch.zeros_like(v)
    for part in parts(slots, qkv.device):
        now, end = part.before(state), 0
        for rows in part.rows.split(part.chunks(), dim=1):
            # [requests, heads, tokens, ...]
            chunk = (x[rows].transpose(1, 2) for x in (q, k, v, log_decay, beta))
            result, now = _chunk(now, *chunk)
            out[rows] = result.transpose(1, 2)
            end += rows.shape[1]
            part.keep(state, end, now)
    return out.flatten(1).to(qkv.dtype)


def _chunk(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Results and the next state, for q, k [..., tokens, key_dim].

    Token by token the rule is state = exp(log_decay) * state, d = beta * (v - state^T k),
    state += k d^T, out = state^T q. Written out for all tokens, the d solve a triangular system.
    """
    between, decayed = decays(log_decay)
    told = beta[..., None] * (v - decayed * (k @ state))
    influence = beta[..., None] * between * (k @ k.transpose(-1, -2))
    d = torch.linalg.solve_triangular(influence, told, upper=False, unitriangular=True)
    return carry(state, q, k, d, between, decayed)


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of each token behind each later one [..., tokens, tokens], and of the state
    before them [..., tokens, 1], for log_decay [..., tokens]."""
    total = log_decay.cumsum(-1)
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    return between, total.exp()[..., None]


def carry(
    state: Tensor, q: Tensor, k: Tensor, d: Tensor, between: Tensor, decayed: Tensor
) -> tuple[Tensor, Tensor]:
    """(results [..., tokens, value_dim], the next state), where token by token state = decay *
    state + k d^T and out = state^T q.

    state [..., key_dim, value_dim]; q and k [..., tokens, key_dim]; d [..., tokens, value_dim];
    `between` [..., tokens, tokens] and `decayed` [..., tokens, 1] as `decays` gives them.
    """
    out = decayed * (q @ state) + (between * (q @ k.transpose(-1, -2))) @ d
    left = between[..., -1, :, None]
    return out, decayed[..., -1:, :] * state + (left * k).transpose(-1, -2) @ d


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `Ops.gated_rms_norm`."""
    heads = x.float().unflatten(1, (-1, weight.shape[0]))
    scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
    out: Tensor = ((heads * scale * weight).flatten(1) * F.silu(gate.float())).to(x.dtype)
    return out


def unit(x: Tensor) -> Tensor:
    """x [..., dim] with lengths of 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def per_value_head(x: Tensor, count: int, tiled: bool) -> Tensor:
    """Key heads [tokens, heads, dim], each for `count` value heads."""
    return x.repeat(1, count, 1) if tiled else x.repeat_interleave(count, dim=1)


class _Part(NamedTuple):
    """Requests with as many tokens in this step, and as many states kept, computed together."""

    rows: Tensor
    """int64 [requests, tokens]."""
    read: Tensor
    is_fresh: Tensor
    """bool [requests]."""
    write: Tensor
    """int64 [requests, tokens]."""
    num_kept: int
    """States are kept behind so many tokens, the last ones."""

    def chunks(self) -> list[int]:
        """Tokens that are worked on at once: what is kept comes from the form that decodes."""
        first = self.rows.shape[1] - max(0, self.num_kept - 1)
        sizes = [_CHUNK] * (first // _CHUNK) + ([first % _CHUNK] if first % _CHUNK else [])
        return sizes + [1] * (self.rows.shape[1] - first)

    def before(self, state: Tensor) -> Tensor:
        mask = self.is_fresh.view(-1, *[1] * (state.dim() - 1))
        return torch.where(mask, 0.0, state[self.read])

    def keep(self, state: Tensor, end: int, after: Tensor) -> None:
        """The states behind each one's first `end` tokens, where they are wanted."""
        if end > self.rows.shape[1] - self.num_kept:
            state[self.write[:, end - 1]] = after


def parts(slots: StateSlots, device: torch.device) -> Iterator[_Part]:
    starts, lens = slots.query_start.tolist(), slots.kv_lens.tolist()
    is_kept = (slots.write > 0).tolist()
    alike: dict[tuple[int, int], list[int]] = {}
    for req in range(len(lens)):
        start, end = starts[req], starts[req + 1]
        if end > start:
            alike.setdefault((end - start, sum(is_kept[start:end])), []).append(req)
    for (length, num_kept), reqs in alike.items():
        first = torch.tensor([starts[req] for req in reqs], device=device)
        fresh = torch.tensor([lens[req] == length for req in reqs], device=device)
        index = torch.tensor(reqs, device=device)
        rows = first[:, None] + torch.arange(length, device=device)
        yield _Part(rows, slots.read[index].long(), fresh, slots.write[rows].long(), num_kept)
