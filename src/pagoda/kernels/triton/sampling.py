"""Choosing among logits."""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref import draw as drawing
from pagoda.kernels.triton.order import LEAST, index_of, packed, value_of

Tensor = torch.Tensor

# Logits that one program looks at.
_SPLIT = 2048
# More of a row's largest are found by torch: each stage sorts a split for so few.
MAX_TOP = 256


@triton.jit
def _largest(
    values, keys, out, size, stride, keep: tl.constexpr, from_keys: tl.constexpr,
    split: tl.constexpr,
):  # fmt: skip
    """The `keep` largest keys of each split of a row, falling."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * split + tl.arange(0, split)
    there = column < size
    if from_keys:
        own = tl.load(keys + row * stride + column, there, other=LEAST)
    else:
        value = tl.load(values + row * stride + column, there, other=0.0)
        own = tl.where(there, packed(value, column), LEAST)
    to = out + (row * tl.num_programs(1) + part) * keep
    if keep == 1:
        tl.store(to, tl.max(own, axis=0))
    else:
        tl.store(to + tl.arange(0, keep), tl.topk(own, keep))


@triton.jit(do_not_specialize=["count"])
def _unpack(keys, values, ids, count, stride, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    key = tl.load(keys + row * stride + place, place < count, other=LEAST)
    tl.store(values + row * count + place, value_of(key), place < count)
    tl.store(ids + row * count + place, index_of(key), place < count)


@triton.jit
def _mask_logits(logits, index, masks, vocab, stride, masks_stride, block: tl.constexpr):
    masked = tl.program_id(0)
    row = tl.load(index + masked)
    token = tl.program_id(1) * block + tl.arange(0, block)
    there = token < vocab
    word = tl.load(masks + masked.to(tl.int64) * masks_stride + token // 32, there, other=0)
    forbidden = there & (((word >> (token % 32)) & 1) == 0)
    tl.store(logits + row * stride + token, float("-inf"), forbidden)


def first_max(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `kernels.ops.first_max`."""
    values, ids = _top(logits, 1)
    return values[:, 0], ids[:, 0]


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `kernels.ops.top_tokens`."""
    if count > min(MAX_TOP, logits.shape[1]):
        return drawing.top_tokens(logits, count)
    return _top(logits, count)


def mask_logits(logits: Tensor, index: Tensor, masks: Tensor) -> None:
    """As `kernels.ops.mask_logits`."""
    vocab = logits.shape[1]
    _mask_logits[(len(index), triton.cdiv(vocab, _SPLIT))](
        logits, index, masks, vocab, logits.stride(0), masks.stride(0), block=_SPLIT
    )


def _top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rows, size = logits.shape
    keep = triton.next_power_of_2(count)
    values = torch.empty((rows, count), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, count), dtype=torch.int64, device=logits.device)
    keys = torch.empty((rows, 0), dtype=torch.int64, device=logits.device)
    while True:
        first = keys.shape[1] == 0
        splits = triton.cdiv(size, _SPLIT)
        out = torch.empty((rows, splits * keep), dtype=torch.int64, device=logits.device)
        _largest[(rows, splits)](
            logits, keys, out, size, (logits if first else keys).stride(0), keep=keep,
            from_keys=not first, split=_SPLIT, num_warps=8,
        )  # fmt: skip
        keys, size = out, out.shape[1]
        if splits == 1:
            break
    _unpack[(rows,)](keys, values, ids, count, keys.stride(0), block=keep, num_warps=1)
    return values, ids
