"""Choosing a token: an exponential race, in which weight w wins with probability w / sum(w).

Every row is treated on its own: the way a row takes depends on its own values and limits alone,
so its token does not change with the rows beside it. And a race is close to indifferent to the
last bits of the logits, which do change with the batch: two tokens change places only if they
were about to draw. (Inverting one number through the running sum is not: on flat distributions
the sum of all roundings exceeds a token's share, and seeded answers drifted apart.)
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.ref.noise import exponential

Tensor = torch.Tensor

# The race has two heats, one among blocks of so many tokens and one inside the winner: a row then
# needs vocab / 128 + 128 random numbers instead of vocab.
_BLOCK = 128
# Most likely tokens looked at before the whole row is; top-p 0.95 of a trained model rarely
# needs more. Finding 256 of 49k takes 0.1 ms, a full sort 3 to 8 ms.
_CANDIDATES = 256
# Histogram of a whole row: exp(-32) is below fp32's resolution of the sum, so the last bin, which
# holds all the rest, is rarely the one that gets sorted.
_BINS_PER_UNIT, _BINS = 64, 64 * 32


class DrawParams(NamedTuple):
    """How each row is drawn; one entry per row."""

    temperature: npt.NDArray[np.float32]
    """0 leaves the row's token as it is."""
    top_k: npt.NDArray[np.int32]
    """Below the vocabulary's size; 0 keeps all."""
    top_p: npt.NDArray[np.float64]
    """In (0, 1]; 1 keeps all."""
    min_p: npt.NDArray[np.float32]
    """In [0, 1]; 0 keeps all."""
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.int64]
    """The noise depends on seed and position and on nothing else."""


@dataclass
class Limits:
    """Which tokens of each row are kept; tensors [rows] on the logits' device."""

    top_k: Tensor
    """int64; 0 keeps all."""
    top_p: Tensor
    """fp64 in (0, 1]; 1 keeps all."""
    min_p: Tensor
    """fp32 in [0, 1]; 0 keeps all."""

    def select(self, rows: Tensor) -> "Limits":
        """The limits of rows [n], by index or mask."""
        return Limits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw_into(tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
    """As `kernels.ops.draw`, a bounded number of rows at once."""
    limited = (params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0)
    random = params.temperature > 0
    chunk = rows_at_once(logits)
    for group, with_limits in ((random & ~limited, False), (random & limited, True)):
        rows = np.flatnonzero(group)
        for start in range(0, len(rows), chunk):
            part = rows[start : start + chunk]
            index = torch.from_numpy(part).to(logits.device)
            one = DrawParams._make(column[part] for column in params)
            tokens[index] = _draw_chunk(logits[index], top[index], one, with_limits)


def _draw_chunk(logits: Tensor, top: Tensor, params: DrawParams, with_limits: bool) -> Tensor:
    numbers = exponential(params.seed, params.position, noise_width(logits.shape[1]))
    noise, temperature, top_k, top_p, min_p = (
        torch.from_numpy(column).to(logits.device)
        for column in (
            numbers, params.temperature, params.top_k.astype(np.int64), params.top_p, params.min_p,
        )
    )  # fmt: skip
    if not with_limits:
        return draw(logits, top, temperature, noise)
    return draw_kept(logits, top, temperature, Limits(top_k, top_p, min_p), noise)


def noise_width(vocab: int) -> int:
    """Random numbers that a row of so many logits needs."""
    return -(-vocab // _BLOCK) + _BLOCK


def rows_at_once(logits: Tensor) -> int:
    """How many rows of logits [rows, vocab] to work on together: few on a CPU, so that passes over
    them stay in its cache."""
    return max(1, (1 << 19 if logits.is_cpu else 1 << 24) // logits.shape[1])


def draw(logits: Tensor, top: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    """Sample from softmax(logits / temperature).

    logits fp32 [rows, vocab]; top fp32 [rows], each row's maximum; temperature fp32 [rows] > 0;
    noise fp64 [rows, noise_width(vocab)], exponentially distributed. Returns int64 [rows].
    """
    return _race(_scaled(logits, top, temperature).exp_(), noise)


def draw_kept(
    logits: Tensor,
    top: Tensor,
    temperature: Tensor,
    limits: Limits,
    noise: Tensor,
    candidates: int = _CANDIDATES,
) -> Tensor:
    """As `draw`, among the tokens that min-p, top-k and top-p keep, applied in that order.

    Top-k keeps all tokens equal to the k-th; top-p keeps the smallest set of most likely tokens
    that reaches p, the lower ids first among equals.
    """
    scaled = _scaled(logits, top, temperature)
    tokens, final = _draw_from_top(scaled, limits, noise, min(candidates, scaled.shape[1] - 1))
    rest = torch.nonzero(~final)[:, 0]
    if len(rest):
        weights = _kept_weights(scaled[rest], limits.select(rest))
        tokens[rest] = _race(weights, noise[rest])
    return tokens


def shares(logits: Tensor, top: Tensor, tokens: Tensor, params: DrawParams) -> Tensor:
    """fp32 [rows, vocab]: how probable each token was when `tokens`, int64 [rows], were drawn from
    fp32 logits [rows, vocab] with `top` fp32 [rows], each row's maximum. Where the temperature is
    0, the row's token has all of it."""
    found = torch.zeros_like(logits).scatter_(1, tokens[:, None], 1.0)
    rows = np.flatnonzero(params.temperature > 0)
    if len(rows):
        index = torch.from_numpy(rows).to(logits.device)
        temperature, top_k, top_p, min_p = (
            torch.from_numpy(column[rows]).to(logits.device)
            for column in (
                params.temperature, params.top_k.astype(np.int64), params.top_p, params.min_p,
            )
        )  # fmt: skip
        scaled = _scaled(logits[index], top[index], temperature)
        weights = _kept_weights(scaled, Limits(top_k, top_p, min_p))[:, : logits.shape[1]]
        found[index] = weights / weights.sum(dim=-1, keepdim=True)
    return found


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(values, ids) [rows, count] of the largest logits, falling; lower ids first of equals."""
    if count >= logits.shape[1]:
        return _sorted(logits)
    values, ids = logits.topk(count + 1)
    tied = torch.nonzero(values[:, count] == values[:, count - 1])[:, 0]
    values, ids = _order_ties(values[:, :count], ids[:, :count])
    for row in tied.tolist():
        # Which of the equals at the border topk takes is not defined.
        reaching = torch.nonzero(logits[row] >= values[row, -1])[:, 0]
        order = logits[row, reaching].sort(descending=True, stable=True).indices[:count]
        ids[row] = reaching[order]
        values[row] = logits[row, ids[row]]
    return values, ids


def _scaled(logits: Tensor, top: Tensor, temperature: Tensor) -> Tensor:
    """(logits - top) / temperature in new memory, padded with -inf to whole blocks."""
    rows, vocab = logits.shape
    out = logits.new_empty((rows, -(-vocab // _BLOCK) * _BLOCK))
    out[:, vocab:] = -torch.inf
    torch.sub(logits, top[:, None], out=out[:, :vocab])
    return out.div_(temperature[:, None])


def _draw_from_top(
    scaled: Tensor, limits: Limits, noise: Tensor, candidates: int
) -> tuple[Tensor, Tensor]:
    """(token ids, whether they are final), looking at each row's most likely tokens only.

    A row is not final if a token beyond them may be kept.
    """
    # One more than looked at: tokens beyond may equal its value, never exceed it.
    values, ids = _order_ties(*scaled.topk(candidates + 1))
    weights = values.double().exp()
    by_count = limits.top_k > 0
    column = limits.top_k.clamp(1, candidates + 1) - 1
    kth = torch.where(by_count, values.gather(1, column[:, None])[:, 0], -torch.inf)
    kept = (weights > 0) & (values >= torch.maximum(kth, limits.min_p.log())[:, None])
    weights.mul_(kept)
    ends = weights.cumsum(dim=-1)
    border = kept & (values == values[:, -1:])
    total = torch.where(by_count, ends[:, -1], _mass(scaled, limits))
    kept &= ends - weights < _goal(limits, total)[:, None]
    # Top-k's total lacks the equals beyond, so they count even where top-p drops them.
    final = ~(border & (kept | by_count[:, None])).any(dim=-1)
    racing = torch.zeros_like(scaled).scatter_(1, ids, values.exp().mul_(kept))
    return _race(racing, noise), final


def _mass(scaled: Tensor, limits: Limits) -> Tensor:
    """fp64 [rows]: sum of exp(scaled) over what min-p keeps, where top-p alone needs it."""
    mass = torch.full((len(scaled),), torch.inf, dtype=torch.float64, device=scaled.device)
    rows = torch.nonzero((limits.top_p < 1) & (limits.top_k == 0))[:, 0]
    if len(rows):
        part = scaled if len(rows) == len(scaled) else scaled[rows]
        weights = part.exp().masked_fill_(part < limits.min_p[rows].log()[:, None], 0.0)
        mass[rows] = _block_sums(weights).cumsum(dim=-1)[:, -1]
    return mass


def _kept_weights(scaled: Tensor, limits: Limits) -> Tensor:
    """exp(scaled), 0 for tokens that are not kept: for any number of tokens, without sorting."""
    weights = scaled.exp()
    floor = limits.min_p.log()
    for row in torch.nonzero(limits.top_k)[:, 0].tolist():
        kth = scaled[row].kthvalue(scaled.shape[1] + 1 - int(limits.top_k[row])).values
        floor[row] = torch.maximum(floor[row], kth)
    weights.masked_fill_(scaled < floor[:, None], 0.0)
    rows = torch.nonzero(limits.top_p < 1)[:, 0]
    if len(rows):
        weights[rows] = _nucleus(scaled[rows], weights[rows], limits.select(rows))
    return weights


def _nucleus(scaled: Tensor, weights: Tensor, limits: Limits) -> Tensor:
    """Top-p by histogram: only the bin in which the goal is reached needs an order."""
    bins = (scaled * -_BINS_PER_UNIT).clamp_(0, _BINS - 1).long()
    sums = torch.zeros((len(scaled), _BINS), dtype=torch.float64, device=scaled.device)
    sums.scatter_add_(1, bins, weights.double())
    ends = sums.cumsum(dim=-1)
    goal = _goal(limits, ends[:, -1])
    # First bin that reaches the goal; all before it are kept, all behind it are not.
    border = (ends < goal[:, None]).sum(dim=-1).clamp_(max=_BINS - 1)
    weights.masked_fill_(bins > border[:, None], 0.0)
    left = goal - (ends - sums).gather(1, border[:, None])[:, 0]
    for row in range(len(scaled)):
        inside = torch.nonzero(bins[row] == border[row])[:, 0]
        order = scaled[row, inside].sort(descending=True, stable=True).indices
        ordered = weights[row, inside[order]].double()
        dropped = ordered.cumsum(dim=-1) - ordered >= left[row]
        weights[row, inside[order[dropped]]] = 0.0
    return weights


def _goal(limits: Limits, total: Tensor) -> Tensor:
    """A token is kept while those before it weigh less than this."""
    return torch.where(limits.top_p < 1, limits.top_p * total, torch.inf)


def _block_sums(weights: Tensor) -> Tensor:
    return weights.view(len(weights), -1, _BLOCK).sum(dim=-1).double()


def _race(weights: Tensor, noise: Tensor) -> Tensor:
    """The winner of weights [rows, blocks * _BLOCK] by noise [rows, blocks + _BLOCK]."""
    blocks = weights.view(len(weights), -1, _BLOCK)
    count = blocks.shape[1]
    block = (blocks.sum(dim=-1) / noise[:, :count]).argmax(dim=-1)
    inside = _take_block(blocks, block) / noise[:, count:]
    return block * _BLOCK + inside.argmax(dim=-1)


def _take_block(blocks: Tensor, index: Tensor) -> Tensor:
    """blocks [rows, n, width] at index [rows] -> [rows, width]."""
    return blocks[torch.arange(len(blocks), device=blocks.device), index]


def _order_ties(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Columns by falling value, then rising id."""
    by_id = ids.sort(dim=-1)
    values = values.gather(1, by_id.indices)
    by_value = values.sort(dim=-1, descending=True, stable=True)
    return by_value.values, by_id.values.gather(1, by_value.indices)


def _sorted(values: Tensor) -> tuple[Tensor, Tensor]:
    result = values.sort(dim=-1, descending=True, stable=True)
    return result.values, result.indices
