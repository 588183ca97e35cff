"""Tiles of keys and values as they lie in the paged cache, and what queries make of them.

All numbers of the storages are exact in the type of the queries, to which tiles are brought: of a
head in 8-bit floats only the scale is left, which `attention` applies once to logits and results.
"""

import triton
import triton.language as tl

from pagoda.kernels.triton.products.fp8 import decode_fp8


@triton.jit
def absorb(logits, values, top, total, acc):
    """Take the keys of a tile into the running largest logit (base 2), sum and weighted values."""
    new_top = tl.maximum(top, tl.max(logits, 1))
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet
    weights = tl.exp2(logits - safe[:, None])
    fade = tl.exp2(top - safe)
    total = total * fade + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * fade[:, None], input_precision="ieee")
    return new_top, total, acc


@triton.jit
def key_tile(cache, blocks, at, dims, DIM: tl.constexpr, STORAGE: tl.constexpr,
              dtype: tl.constexpr):  # fmt: skip
    """(keys [dims, tokens], what their logits are multiplied with [tokens]).

    Not masked by token: what lies in unseen places cannot leave its column of logits.
    """
    ROW: tl.constexpr = DIM + 4 if STORAGE == "int8" else DIM
    rows = cache + blocks + at * ROW
    tile = tl.load(rows[None, :] + dims[:, None], mask=dims[:, None] < DIM, other=0)
    if STORAGE == "int8":
        scales = (rows + DIM).to(tl.pointer_type(tl.float32), bitcast=True)
        return tile.to(tl.float32).to(dtype), tl.load(scales)
    if STORAGE == "e4m3x2":
        tile = tile.to(tl.float8e4nv, bitcast=True)
    if STORAGE == "e4m3":
        tile = decode_fp8(tile, 3)
    if STORAGE == "e5m2":
        tile = decode_fp8(tile, 2)
    return tile.to(dtype), tl.full(at.shape, 1.0, tl.float32)


@triton.jit
def value_tile(cache, blocks, at, seen, dims, DIM: tl.constexpr, STORAGE: tl.constexpr,
                dtype: tl.constexpr):  # fmt: skip
    """Values [tokens, dims], zero where not `seen` [tokens]; None sees all."""
    ROW: tl.constexpr = DIM + 4 if STORAGE == "int8" else DIM
    rows = cache + blocks + at * ROW
    mask = dims[None, :] < DIM
    if seen is not None:
        mask &= seen[:, None]
    tile = tl.load(rows[:, None] + dims[None, :], mask=mask, other=0)
    if STORAGE == "int8":
        places = (rows + DIM).to(tl.pointer_type(tl.float32), bitcast=True)
        scales = tl.load(places) if seen is None else tl.load(places, mask=seen, other=0)
        tile = tile.to(tl.float32) * scales[:, None]
    if STORAGE == "e4m3x2":
        tile = tile.to(tl.float8e4nv, bitcast=True)
    if STORAGE == "e4m3":
        tile = decode_fp8(tile, 3)
    if STORAGE == "e5m2":
        tile = decode_fp8(tile, 2)
    return tile.to(dtype)


@triton.jit
def score(
    queries, q_rows, real, cache, blocks, offset, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    CHUNK: tl.constexpr, STORAGE: tl.constexpr,
):  # fmt: skip
    """Queries [rows, dims] times keys, [rows, tokens]."""
    if CHUNK == DIM_PAD:
        dims = tl.arange(0, DIM_PAD)
        keys, scales = key_tile(cache, blocks, offset, dims, DIM, STORAGE, queries.dtype)
        scores = tl.dot(queries, keys, input_precision="ieee")
    else:
        # Without tensor cores a thread holds whole rows and columns: some dimensions at a time.
        scores = tl.zeros((q_rows.shape[0], offset.shape[0]), tl.float32)
        for first in tl.static_range(0, DIM_PAD, CHUNK):
            dims = first + tl.arange(0, CHUNK)
            mask = real[:, None] & (dims[None, :] < DIM)
            part = tl.load(q_rows[:, None] + dims[None, :], mask=mask, other=0)
            keys, scales = key_tile(cache, blocks, offset, dims, DIM, STORAGE, part.dtype)
            scores = tl.dot(part, keys, scores, input_precision="ieee")
    return scores * scales[None, :] if STORAGE == "int8" else scores


@triton.jit
def capped(logits, cap):
    """cap * tanh(logits / cap): tanh(u) is 2 sigmoid(2 u) - 1."""
    return cap * (2.0 * tl.sigmoid(logits * (2.0 / cap)) - 1.0)


@triton.jit
def blocks_of(table, index, end, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Ids of the blocks of a tile's tokens: one number if they share it. 0 from `end` on."""
    if BLOCK_SIZE % KEYS == 0:
        block = tl.load(table + index * KEYS // BLOCK_SIZE, mask=index * KEYS < end, other=0)
    else:
        column = (index * KEYS + tl.arange(0, KEYS)) // BLOCK_SIZE
        # Masked by block, so that a block's tokens are known to have the same id.
        block = tl.load(table + column, mask=column * BLOCK_SIZE < end, other=0)
    return block.to(tl.int64)
