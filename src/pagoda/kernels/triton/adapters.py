"""Low-rank adapters (arXiv 2106.09685): A shrinks each row, B expands what is left.

A program works on one row, whatever the others are, so that a row gains the same bits in every
batch; rows without an adapter read nothing.
"""

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

# Elements of A or B that a program holds at once.
_ELEMENTS = 4096
_MOST_RANKS = 64


@triton.jit
def _rank(slots, ranks, token):
    """(int64 slot, its rank), of a row without one (0, 0)."""
    slot = tl.load(slots + token).to(tl.int64)
    place = tl.maximum(slot, 0)
    return place, tl.where(slot < 0, 0, tl.load(ranks + place))


@triton.jit
def _shrink(
    x, a, ranks, slots, low, columns, max_rank, stride, shards, sharers,
    block_ranks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token, shard = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot, count = _rank(slots, ranks, token)
    rank = tl.program_id(2) * block_ranks + tl.arange(0, block_ranks)
    used = rank < count
    rows = a + ((slot * shards + shard) * max_rank + rank).to(tl.int64)[:, None] * columns
    given = x + (token // sharers) * stride
    sums = tl.zeros((block_ranks, block), dtype=tl.float32)
    for start in range(0, tl.where(count > 0, columns, 0), block):
        column = start + tl.arange(0, block)
        there = column < columns
        part = tl.load(rows + column[None, :], used[:, None] & there[None, :], other=0.0)
        values = tl.load(given + column, there, other=0.0).to(tl.float32)
        sums += part.to(tl.float32) * values[None, :]
    to = low + (token * shards + shard) * max_rank + rank
    tl.store(to, tl.sum(sums, axis=1), used)


@triton.jit
def _expand(
    low, b, ranks, slots, out, first, size, outputs, max_rank, stride, shard, shards,
    block_ranks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot, count = _rank(slots, ranks, token)
    column = tl.program_id(1) * block + tl.arange(0, block)
    there = column < tl.where(count > 0, size, 0)
    total = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, count, block_ranks):
        rank = start + tl.arange(0, block_ranks)
        used = rank < count
        h = tl.load(low + (token * shards + shard) * max_rank + rank, used, other=0.0)
        at = b + (slot * max_rank + rank)[:, None] * outputs + first + column[None, :]
        part = tl.load(at, used[:, None] & there[None, :], other=0.0).to(tl.float32)
        total += tl.sum(part * h[:, None], axis=0)
    to = out + token * stride + first + column
    before = tl.load(to, there, other=0.0).to(tl.float32)
    tl.store(to, (before + total).to(out.dtype.element_ty), there)


def add_adapters(
    out: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    ranks: Tensor,
    slots: Tensor,
    sizes: tuple[int, ...],
) -> None:
    """As `kernels.ops.add_adapters`."""
    add_of_shared(out, x, a, b, ranks, slots, sizes, 1)


def add_of_shared(
    out: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    ranks: Tensor,
    slots: Tensor,
    sizes: tuple[int, ...],
    sharers: int,
) -> None:
    """As `add_adapters`, where `sharers` rows of `out` that follow each other read one row of x."""
    assert out.stride(1) == x.stride(1) == 1 and a.is_contiguous() and b.is_contiguous()
    tokens, columns = len(out), x.shape[1]
    if not tokens:
        return
    shards, max_rank = a.shape[1:3]
    block_ranks = min(triton.next_power_of_2(max_rank), _MOST_RANKS)
    block = _ELEMENTS // block_ranks
    low = torch.empty((tokens, shards, max_rank), dtype=torch.float32, device=x.device)
    _shrink[(tokens, shards, triton.cdiv(max_rank, block_ranks))](
        x, a, ranks, slots, low, columns, max_rank, x.stride(0), shards, sharers,
        block_ranks=block_ranks, block=block,
    )  # fmt: skip
    first = 0
    for shard, size in enumerate(sizes):
        _expand[(tokens, triton.cdiv(size, block))](
            low, b, ranks, slots, out, first, size, out.shape[1], max_rank, out.stride(0), shard,
            shards, block_ranks=block_ranks, block=block,
        )  # fmt: skip
        first += size
