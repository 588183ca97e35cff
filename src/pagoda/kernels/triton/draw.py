"""Choosing a token by an exponential race, without sorting: see `kernels.ref.draw`.

One program per row. Let a token's distance be (top - logit) / temperature: what min-p, top-k and
top-p keep are the tokens within some distance each, found by bisection over the bits of a float.
Passes over a whole row are few, since first a bound is doubled until it holds enough tokens; where
those fit a small buffer, the bisection reads that.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.draw import DrawParams
from pagoda.kernels.transfer import to_tensor

Tensor = torch.Tensor

# As in `kernels.ref.draw`, so that the same numbers meet in the race.
_WIDTH = tl.constexpr(128)
# Logits that a pass holds at once, and that the buffer of a row has room for.
_BLOCK = 8192
_ROOM = 4096
_OF_ROWS = [
    "tokens", "tops", "seeds", "positions", "top_ps", "temperatures", "min_ps", "top_ks",
]  # fmt: skip
"""They lie side by side: how they are aligned, for which kernels are compiled, depends on how many
rows there are."""
# Constants of SplitMix64: see `kernels.ref.noise`.
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
# exp(-128) is 0 in fp32: nobody draws a token at that distance or beyond.
_FARTHEST = tl.constexpr(128.0)


@triton.jit
def _splitmix(seed, index):
    x = seed + (index + 1).to(tl.uint64) * _GAMMA
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def _exponential(stream, index):
    """fp64 numbers `index` (int64) of a row's stream: those of `ref.noise.exponential`."""
    bits = (_splitmix(stream, index) >> 11) + 1
    uniform = bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2**-53
    noise = -tl.log(uniform)
    return tl.where(noise > 1e-300, noise, 1e-300)


@triton.jit
def _distances(logits, start, count, top, temperature, block: tl.constexpr):
    """(fp32 distances, infinity behind the end, and their bits, which rise with them)."""
    at = start + tl.arange(0, block)
    distance = (top - tl.load(logits + at, at < count, other=float("-inf"))) / temperature
    return distance, distance.to(tl.int32, bitcast=True)


@triton.jit
def _measure(logits, count, top, temperature, reach, by_count: tl.constexpr, block: tl.constexpr):
    """fp64: how many tokens lie within the distance with bits `reach`, or their weight."""
    total = tl.zeros([block // _WIDTH], tl.float64)
    for start in range(0, count, block):
        distance, bits = _distances(logits, start, count, top, temperature, block)
        inside = (bits <= reach) & (start + tl.arange(0, block) < count)
        if by_count:
            weight = tl.where(inside, 1.0, 0.0)
        else:
            weight = tl.where(inside, tl.exp(-distance), 0.0)
        sums = tl.sum(tl.reshape(weight, (block // _WIDTH, _WIDTH)), axis=1)
        total += sums.to(tl.float64)
    return tl.sum(total, axis=0)


@triton.jit
def _gather(logits, count, top, temperature, reach, into, block: tl.constexpr, room: tl.constexpr):
    """How many logits lie within `reach`; up to `room` of them are written, in their order."""
    done = tl.zeros([], tl.int32)
    for start in range(0, count, block):
        at = start + tl.arange(0, block)
        bits = _distances(logits, start, count, top, temperature, block)[1]
        inside = ((bits <= reach) & (at < count)).to(tl.int32)
        to = done + tl.cumsum(inside, axis=0) - 1
        there = (inside > 0) & (to < room)
        tl.store(into + to, tl.load(logits + at, there, other=0.0), there)
        done += tl.sum(inside, axis=0)
    # Other threads than those that wrote will read.
    tl.debug_barrier()
    return done


@triton.jit
def _reaching(
    logits, count, top, temperature, goal, limit, into, by_count: tl.constexpr,
    block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """Bits of the least distance within which the measure is `goal`; `limit` if none is below.

    Doubles a bound first, gathers what lies within it if that fits `into`, then bisects.
    """
    low = tl.zeros([], tl.int32)
    bound = tl.full([], 4.0, tl.float32)
    high = tl.minimum(bound.to(tl.int32, bitcast=True), limit)
    enough = _measure(logits, count, top, temperature, high, by_count, block) >= goal
    while (high < limit) & (enough == 0):
        low = high + 1
        bound = bound * 2.0
        high = tl.minimum(bound.to(tl.int32, bitcast=True), limit)
        enough = _measure(logits, count, top, temperature, high, by_count, block) >= goal
    low = tl.where(enough, low, high)
    if low < high:
        found = _gather(logits, count, top, temperature, high, into, block, room)
        if found <= room:
            high = _bisect(into, found, top, temperature, goal, low, high, by_count, block)
        else:
            high = _bisect(logits, count, top, temperature, goal, low, high, by_count, block)
        # The buffer is written again for the next limit.
        tl.debug_barrier()
    return high


@triton.jit
def _bisect(
    logits, count, top, temperature, goal, low, high, by_count: tl.constexpr, block: tl.constexpr
):
    while low < high:
        middle = low + (high - low) // 2
        enough = _measure(logits, count, top, temperature, middle, by_count, block) >= goal
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return high


@triton.jit
def _weights(distance, bits, equals_before, reach, equals, blocks: tl.constexpr):
    """(weights of tokens kept [blocks, _WIDTH], equals in front of each block): of the tokens at
    the distance `reach` itself the first `equals` are kept, `equals_before` lie in front."""
    equal = tl.reshape((bits == reach).to(tl.int32), (blocks, _WIDTH))
    found = tl.sum(equal, axis=1)
    before = equals_before + tl.cumsum(found, axis=0) - found
    rank = before[:, None] + tl.cumsum(equal, axis=1) - equal
    near = tl.reshape(bits, (blocks, _WIDTH)) < reach
    kept = near | ((equal > 0) & (rank.to(tl.float64) < equals))
    weight = tl.reshape(tl.exp(-distance), (blocks, _WIDTH))
    return tl.where(kept, weight, 0.0), before


@triton.jit
def _race(logits, vocab, top, temperature, stream, reach, equals, block: tl.constexpr):
    """The winning token: heat one among blocks of tokens, heat two inside the winner."""
    lane = tl.arange(0, block // _WIDTH)
    best = tl.full([block // _WIDTH], -1.0, tl.float64)
    best_block, best_before = lane, tl.zeros([block // _WIDTH], tl.int32)
    equals_before = tl.zeros([], tl.int32)
    for start in range(0, vocab, block):
        distance, bits = _distances(logits, start, vocab, top, temperature, block)
        weights, before = _weights(distance, bits, equals_before, reach, equals, block // _WIDTH)
        number = lane + start // _WIDTH
        chance = tl.sum(weights, axis=1).to(tl.float64)
        chance = chance / _exponential(stream, number.to(tl.int64))
        better = (chance > best) & (number * _WIDTH < vocab)
        best = tl.where(better, chance, best)
        best_block = tl.where(better, number, best_block)
        best_before = tl.where(better, before, best_before)
        equals_before += tl.sum((bits == reach).to(tl.int32), axis=0)
    winner = tl.min(tl.where(best == tl.max(best, axis=0), best_block, vocab), axis=0)
    before = tl.max(tl.where(best_block == winner, best_before, 0), axis=0)
    distance, bits = _distances(logits, winner * _WIDTH, vocab, top, temperature, _WIDTH)
    weights = tl.reshape(_weights(distance, bits, before, reach, equals, 1)[0], (_WIDTH,))
    inside = tl.arange(0, _WIDTH)
    noise = _exponential(stream, (tl.cdiv(vocab, _WIDTH) + inside).to(tl.int64))
    return winner * _WIDTH + tl.argmax(weights.to(tl.float64) / noise, axis=0)


@triton.jit(do_not_specialize=_OF_ROWS)
def _draw(
    tokens, logits, tops, seeds, positions, top_ps, temperatures, min_ps, top_ks, buffer, vocab,
    stride, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        logits += row * stride
        into = buffer + row * room
        top = tl.load(tops + row)
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        # Not the negative: -0 has other bits.
        floor = tl.where(min_p > 0, tl.abs(tl.log(min_p)), _FARTHEST)
        reach = tl.minimum(floor, _FARTHEST).to(tl.int32, bitcast=True)
        equals = tl.full([], float("inf"), tl.float64)
        if top_k > 0:
            goal = top_k.to(tl.float64)
            reach = _reaching(logits, vocab, top, temperature, goal, reach, into, True, block, room)
        if top_p < 1:
            goal = top_p * _measure(logits, vocab, top, temperature, reach, False, block)
            reach = _reaching(
                logits, vocab, top, temperature, goal, reach, into, False, block, room
            )
            # A token is kept while those before it weigh less than the goal.
            nearer = _measure(logits, vocab, top, temperature, reach - 1, False, block)
            equals = (goal - nearer) / tl.exp(-reach.to(tl.float32, bitcast=True)).to(tl.float64)
        seed = tl.load(seeds + row).to(tl.uint64, bitcast=True)
        zero = tl.zeros([], tl.int64)
        stream = _splitmix(_splitmix(seed, zero), tl.load(positions + row))
        token = _race(logits, vocab, top, temperature, stream, reach, equals, block)
        tl.store(tokens + row, token.to(tl.int64))


def draw(tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
    """As `kernels.ops.draw`."""
    rows, vocab = logits.shape
    columns = _on_device(params, logits.device)
    buffer = torch.empty((rows, _ROOM), dtype=torch.float32, device=logits.device)
    _draw[(rows,)](
        tokens, logits, top, *columns, buffer, vocab, logits.stride(0), block=_BLOCK, room=_ROOM,
        num_warps=16,
    )  # fmt: skip


def _on_device(params: DrawParams, device: torch.device) -> list[Tensor]:
    """(seed, position, top_p, temperature, min_p, top_k) in one transfer, wide types first."""
    columns: list[npt.NDArray[Any]] = [
        params.seed.view(np.int64), params.position, params.top_p,
        params.temperature, params.min_p, params.top_k,
    ]  # fmt: skip
    together = np.concatenate([np.ascontiguousarray(column).view(np.uint8) for column in columns])
    parts = to_tensor(together, device).split([column.nbytes for column in columns])
    kinds = (torch.int64, torch.int64, torch.float64, torch.float32, torch.float32, torch.int32)
    return [part.view(kind) for part, kind in zip(parts, kinds, strict=True)]
