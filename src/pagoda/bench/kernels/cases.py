"""What `bench micro` runs: every native kernel at the sizes that models have."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from pagoda.bench.kernels.shapes import DELTA_NETS, SHAPES, DeltaNetShape, Shape
from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import cpu
from pagoda.kernels.cpu.ops import CpuOps
from pagoda.kernels.ops import Decay, StateSlots
from pagoda.kernels.ref.kv_cache import views
from pagoda.weights.formats import FORMATS

TOKENS = (1, 4, 16, 128, 512)
_LENGTHS = (128, 1024, 4096)
_BLOCK = 16
# A product finds its weights in memory and not in a cache, as in a model's step: copies of a
# matrix take turns until they fill this.
_TURNS_BYTES = 128 << 20
# A byte that is a sane number in every format, as a half, an exponent and a level.
_FILL = 0x2C
_TOP_K = 64


@dataclass(frozen=True)
class Case:
    kernel: str
    what: str
    """Format and sizes."""
    tokens: int
    nbytes: int
    """Read and written, each once."""
    ops: int
    """Multiplications and additions."""
    footprint: int
    """Bytes that take turns: what a cache would have to hold."""
    arithmetic: Literal["dot", "fma"]
    prepare: Callable[[], Callable[[], object]]
    """Allocates; what it returns is one call of the kernel."""


def all_cases() -> Iterator[Case]:
    native, ops = cpu.native(), cpu.native_ops()
    assert native is not None and ops is not None  # the command checks it
    for shape in SHAPES:
        for storage in sorted(cpu.packed_storages()):
            yield from _products(native, shape, storage)
        yield from _elementwise(ops, shape)
        yield from _attention(ops, shape)
        yield from _logits(ops, shape)
    for delta_net in DELTA_NETS:
        yield from _delta_net(ops, delta_net)


def _products(native: Any, shape: Shape, storage: str) -> Iterator[Case]:
    # One name's cases share the packed matrices of the last one asked for.
    for (name, (rows, columns)), tokens in itertools.product(shape.linears.items(), TOKENS):
        stored = FORMATS[storage]
        if columns % stored.block_elements:
            continue
        weights = rows * stored.nbytes(columns)
        copies = max(1, _TURNS_BYTES // weights)
        moved = weights + 4 * tokens * (rows + columns)
        yield Case(
            "matmul", f"{shape.name} {name} {storage}", tokens, moved, 2 * tokens * rows * columns,
            max(weights * copies, moved), "fma" if storage in ("F32", "F16", "BF16") else "dot",
            partial(_product, native, storage, rows, columns, copies, tokens),
        )  # fmt: skip


_kept: dict[tuple[str, int, int], list[Any]] = {}


def _product(
    native: Any, storage: str, rows: int, columns: int, copies: int, tokens: int
) -> Callable[[], object]:
    key = (storage, rows, columns)
    if key not in _kept:
        _kept.clear()
        raw = torch.full((rows, FORMATS[storage].nbytes(columns)), _FILL, dtype=torch.uint8)
        _kept[key] = [cpu.packed_matrix(storage, rows, columns) for _ in range(copies)]
        for matrix in _kept[key]:
            native.load(matrix, 0, rows, raw.data_ptr(), raw.stride(0))
    x, out = torch.randn(tokens, columns), torch.empty(tokens, rows)
    turns = itertools.cycle([[matrix] for matrix in _kept[key]])
    return lambda: native.matmul(x.data_ptr(), columns, tokens, next(turns), out.data_ptr(), rows)


def _elementwise(ops: CpuOps, shape: Shape) -> Iterator[Case]:
    for tokens in TOKENS:
        size = tokens * shape.hidden
        yield _fp32(
            "add_rms_norm", shape.name, tokens, 16 * size, 5 * size,
            partial(_norm, ops, tokens, shape.hidden),
        )  # fmt: skip
        size = tokens * shape.mlp
        # exp as a polynomial of degree 6, and four more.
        yield _fp32(
            "activate_and_mul", shape.name, tokens, 12 * size, 18 * size,
            partial(_silu, ops, tokens, shape.mlp),
        )  # fmt: skip
        rotated = tokens * (shape.heads + shape.kv_heads) * shape.dim
        cached = 2 * tokens * shape.kv_heads * shape.dim
        moved = 8 * rotated + 6 * cached // 2 + 2 * cached
        yield _fp32(
            "rotary_store", shape.name, tokens, moved, 3 * rotated,
            partial(_rotary, ops, shape, tokens),
        )  # fmt: skip


def _norm(ops: CpuOps, tokens: int, hidden: int) -> Callable[[], object]:
    x, residual = torch.randn(2, tokens, hidden)
    weight = torch.ones(hidden)
    return lambda: ops.add_rms_norm(x, residual, weight, 1e-5)


def _silu(ops: CpuOps, tokens: int, mlp: int) -> Callable[[], object]:
    x = torch.randn(tokens, 2 * mlp)
    return lambda: ops.activate_and_mul(x, "silu")


def _rotary(ops: CpuOps, shape: Shape, tokens: int) -> Callable[[], object]:
    k_cache, v_cache = _caches(shape, tokens)
    qkv = torch.randn(tokens, (shape.heads + 2 * shape.kv_heads) * shape.dim)
    positions = torch.arange(tokens)
    angles = torch.randn(tokens, shape.dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    return lambda: ops.rotary_store(
        qkv, shape.heads, positions, cos_sin, k_cache, v_cache, positions
    )


def _attention(ops: CpuOps, shape: Shape) -> Iterator[Case]:
    """Decoding of 1 and 16 requests behind some context, and prompts as a whole."""
    per_key = shape.heads * shape.dim
    for length in _LENGTHS:
        cached = 2 * 2 * length * shape.kv_heads * shape.dim
        for reqs in (1, 16):
            yield _fp32(
                "paged_attention", f"{shape.name} decode at {length}", reqs,
                reqs * (cached + 8 * per_key), 4 * reqs * length * per_key,
                partial(_attend, ops, shape, reqs, 1, length),
            )  # fmt: skip
        yield _fp32(
            "paged_attention", f"{shape.name} prompt of {length}", length,
            cached + 8 * length * per_key, 2 * length * (length + 1) * per_key,
            partial(_attend, ops, shape, 1, length, length),
        )  # fmt: skip


def _attend(
    ops: CpuOps, shape: Shape, reqs: int, queries: int, length: int
) -> Callable[[], object]:
    blocks = length // _BLOCK
    k_cache, v_cache = _caches(shape, reqs * length)
    q = torch.randn(reqs * queries, shape.heads, shape.dim)
    # Blocks in no order, as a server's are after a while.
    order = torch.randperm(reqs * blocks, generator=torch.Generator().manual_seed(0))
    table = order.to(torch.int32).view(reqs, blocks)
    starts = torch.arange(reqs + 1, dtype=torch.int32) * queries
    lens = torch.full((reqs,), length, dtype=torch.int32)
    scale = shape.dim**-0.5
    return lambda: ops.paged_attention(q, k_cache, v_cache, table, starts, lens, scale=scale)


def _caches(shape: Shape, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-tokens // _BLOCK)
    k, v = torch.randn(2, blocks, shape.kv_heads * _BLOCK * shape.dim).half()
    return views(k, v, KVLayout(block_size=_BLOCK), shape.kv_heads)


def _logits(ops: CpuOps, shape: Shape) -> Iterator[Case]:
    for tokens in (1, 16):
        logits = (tokens, shape.vocabulary)
        moved = 4 * tokens * shape.vocabulary
        yield _fp32("argmax", shape.name, tokens, moved, 0, partial(_argmax, ops, logits))
        name = f"{shape.name} {_TOP_K}"
        yield _fp32("top_k", name, tokens, moved, 0, partial(_top_k, ops, logits))


def _argmax(ops: CpuOps, size: tuple[int, int]) -> Callable[[], object]:
    logits = torch.randn(size)
    return lambda: ops.first_max(logits)


def _top_k(ops: CpuOps, size: tuple[int, int]) -> Callable[[], object]:
    logits = torch.randn(size)
    return lambda: ops.top_tokens(logits, _TOP_K)


def _delta_net(ops: CpuOps, shape: DeltaNetShape) -> Iterator[Case]:
    """Decoding of 1 and 16 requests, and prompts; states take turns as those of layers do."""
    values = shape.value_heads * shape.dim
    for reqs, length in ((1, 1), (16, 1), (1, 128), (1, 512)):
        tokens = reqs * length
        name = f"{shape.name} decode" if length == 1 else f"{shape.name} prompt"
        elements = shape.value_heads * shape.dim * shape.dim
        moved = 4 * (2 * reqs * elements + tokens * (shape.channels + values))
        yield Case(
            "gated_delta_rule", name, tokens, moved, 7 * tokens * elements,
            max(_TURNS_BYTES, moved), "fma", partial(_rule, ops, shape, reqs, length),
        )  # fmt: skip
        elements = (shape.width - 1) * shape.channels
        moved = 4 * (2 * reqs * elements + 2 * tokens * shape.channels)
        taps = 2 * shape.width * tokens * shape.channels
        yield _fp32(
            "causal_conv", name, tokens, moved, taps,
            partial(_conv, ops, shape, reqs, length),
        )  # fmt: skip


def _rule(ops: CpuOps, shape: DeltaNetShape, reqs: int, length: int) -> Callable[[], object]:
    elements = shape.value_heads * shape.dim * shape.dim
    turns = max(1, _TURNS_BYTES // (4 * elements * reqs))
    states = torch.randn(1 + turns * reqs, shape.value_heads, shape.dim, shape.dim)
    qkv = torch.randn(reqs * length, shape.channels)
    strength, x = torch.randn(2, reqs * length, shape.value_heads)
    decay = Decay(x, -torch.rand(shape.value_heads), torch.zeros(shape.value_heads))
    slots = itertools.cycle([_slots(1 + turn * reqs, reqs, length) for turn in range(turns)])
    return lambda: ops.gated_delta_rule(qkv, strength, decay, states, next(slots), tiled=False)


def _conv(ops: CpuOps, shape: DeltaNetShape, reqs: int, length: int) -> Callable[[], object]:
    state = torch.randn(1 + reqs, shape.width - 1, shape.channels)
    x, weight = torch.randn(reqs * length, shape.channels), torch.randn(shape.width, shape.channels)
    slots = _slots(1, reqs, length)
    return lambda: ops.causal_conv(x, weight, state, slots)


def _slots(first: int, reqs: int, length: int) -> StateSlots:
    """Requests that go on from states in slots from `first` on, in place."""
    where = torch.arange(first, first + reqs, dtype=torch.int32)
    starts = torch.arange(reqs + 1, dtype=torch.int32) * length
    write = torch.zeros(reqs * length, dtype=torch.int32)
    write[length - 1 :: length] = where
    return StateSlots(where, write, starts, torch.full((reqs,), length + 1, dtype=torch.int32))


def _fp32(
    kernel: str,
    what: str,
    tokens: int,
    nbytes: int,
    ops: int,
    prepare: Callable[[], Callable[[], object]],
) -> Case:
    return Case(kernel, what, tokens, nbytes, ops, nbytes, "fma", prepare)
