"""A mixture of experts: what the chosen ones compute, of plain and of quantized weights.

An assignment is a token's place in `ids`, flattened. Few assignments compute alone, each on its
expert's weights; many are sorted by expert, and tiles of those of one expert share its weights.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple, Self

import torch
import triton
import triton.language as tl

from pagoda.kernels.cpu.experts import PackedExperts
from pagoda.kernels.ref.adapters import AdapterTensors, ExpertAdapters
from pagoda.kernels.ref.experts import Beside, Gating, Grouped, PlainExperts, Routed
from pagoda.kernels.ref.linear import matmul
from pagoda.kernels.triton import activation
from pagoda.kernels.triton.activation import gated
from pagoda.kernels.triton.adapters import add_of_shared
from pagoda.kernels.triton.products.arranged import arranged
from pagoda.kernels.triton.products.decode import products, row_sums
from pagoda.kernels.triton.products.forms import Case, case, form, rows_of_tile
from pagoda.kernels.triton.products.gemm import decode, has_dot, kind_of
from pagoda.kernels.triton.products.layouts import Layout
from pagoda.kernels.triton.products.matrix import GpuMatrix
from pagoda.kernels.triton.target import capability

Tensor = torch.Tensor

_MOST_ALONE = 128
"""Assignments of a step that may compute one by one, where that is as fast."""
_CHANGING = ["assignments"]


class _Part(NamedTuple):
    """A matrix [rows, columns] of each of `count` experts."""

    matrix: GpuMatrix
    rows: int
    first: int
    """Row of the first expert's."""
    stride: int
    """Rows from one expert's to the next one's."""
    bias: Tensor | None
    """[count, rows], rows any stride apart."""


@triton.jit
def _with_bias(total, bias, expert, bias_stride, row, there, AXIS: tl.constexpr):
    if bias is not None:
        own = tl.load(bias + expert * bias_stride + row, there).to(tl.float32)
        total += tl.expand_dims(own, 0) if AXIS == 2 else own
    return total


@triton.jit
def _weighed(total, weights, assignment, real, AXIS: tl.constexpr):
    """What an expert computes is linear in what it reads: the weight of that comes afterwards."""
    if weights is not None:
        total *= tl.expand_dims(tl.load(weights + assignment, real, other=0), AXIS)
    return total


@triton.jit(do_not_specialize=_CHANGING)
def _alone(
    x, ids, weights, out, low, high, scales, minima, supers, bias, low2, high2, scales2, minima2,
    supers2, bias2, assignments, first, count, sharers, x_stride, out_stride, rows, all_rows,
    begin, begin2, stride, bias_stride, columns, alpha, limit, LAYOUT: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr,
    CLAMPS: tl.constexpr,
):  # fmt: skip
    assignment = (tl.program_id(0) % assignments).to(tl.int64)
    expert = tl.load(ids + assignment).to(tl.int32) - first
    if (expert < 0) | (expert >= count):
        return
    OWN: tl.constexpr = ROWS // 2 if GATED else ROWS
    # The last tile is a whole one, too: what another has computes the same.
    tile = tl.minimum((tl.program_id(0) // assignments) * OWN, rows - OWN).to(tl.int64)
    which = tl.arange(0, ROWS)
    row = tile + which % OWN
    if GATED:
        # Rows of both matrices in one tile: more bytes are under way than if they took turns.
        second = which >= OWN
        line = second[:, None]
        begin = tl.where(second, begin2, begin)
        # As all pointers that are given; unless it is said, codes go through shared memory.
        low = tl.multiple_of(tl.where(line, low2, low), (16, 16))
        if high is not None:
            high = tl.multiple_of(tl.where(line, high2, high), (16, 16))
        if scales is not None:
            scales = tl.where(line, scales2, scales)
        if minima is not None:
            minima = tl.where(line, minima2, minima)
        if supers is not None:
            supers = tl.where(second, supers2, supers)
        if bias is not None:
            bias = tl.where(second, bias2, bias)
    given, last = x + (assignment // sharers) * x_stride, tl.cdiv(columns, 256)
    total = row_sums(
        given, low, high, scales, minima, supers, begin + expert * stride + row, all_rows, columns,
        0, last, LAYOUT, WHOLE,
    )  # fmt: skip
    total = _weighed(total, weights, assignment, True, 0)
    total = _with_bias(total, bias, expert, bias_stride, row, None, 1)
    if GATED:
        gate, up = tl.split(tl.trans(tl.reshape(total, (2, OWN))))
        total = gated(gate, up, alpha, limit, KIND, CLAMPS)
    place = out + assignment * out_stride + tile + tl.arange(0, OWN)
    tl.store(place, total.to(out.dtype.element_ty))


@triton.jit
def _grouped(
    x, counts, offsets, order, weights, out, low, high, scales, minima, supers, bias, low2, high2,
    scales2, minima2, supers2, bias2, count, sharers, x_stride, out_stride, rows, all_rows, begin,
    begin2, stride, bias_stride, columns, alpha, limit, LAYOUT: tl.constexpr, WHOLE: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr, GATED: tl.constexpr,
    KIND: tl.constexpr, CLAMPS: tl.constexpr,
):  # fmt: skip
    tile, which = tl.program_id(0), tl.arange(0, EXPERTS)
    tiles = tl.cdiv(tl.load(counts + which, which < count, other=0), TOKENS)
    ends = tl.cumsum(tiles, 0)
    expert = tl.sum((ends <= tile).to(tl.int32), 0)
    if expert >= count:  # as many programs as there could be tiles
        return
    tile -= tl.sum(tl.where(which == expert, ends - tiles, 0), 0)
    place = tile * TOKENS + tl.arange(0, TOKENS)
    real = place < tl.load(counts + expert)
    assignment = tl.load(order + tl.load(offsets + expert) + place, real, other=0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there, own = row < rows, expert * stride + tl.minimum(row, rows - 1)
    given, last = x + (assignment // sharers) * x_stride, tl.cdiv(columns, 256)
    total = products(
        given, real, low, high, scales, minima, supers, begin + own, all_rows, columns, 0, last,
        LAYOUT, WHOLE,
    )  # fmt: skip
    total = _weighed(total, weights, assignment, real, 1)
    total = _with_bias(total, bias, expert, bias_stride, row, there, 2)
    if GATED:
        up = products(
            given, real, low2, high2, scales2, minima2, supers2, begin2 + own, all_rows, columns,
            0, last, LAYOUT, WHOLE,
        )  # fmt: skip
        up = _weighed(up, weights, assignment, real, 1)
        up = _with_bias(up, bias2, expert, bias_stride, row, there, 2)
        total = gated(total, up, alpha, limit, KIND, CLAMPS)
    tl.store(out + assignment[:, None] * out_stride + row[None, :],
             total.to(out.dtype.element_ty), real[:, None] & there[None, :])  # fmt: skip


@triton.jit
def _combine(
    y, ids, weights, out, shared, gate, first, count, size, shared_row, gate_row,
    TOP_K: tl.constexpr, WEIGHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    if shared is not None:
        total += tl.load(shared + token * shared_row + column, column < size, other=0)
        if gate is not None:
            total *= tl.sigmoid(tl.load(gate + token * gate_row).to(tl.float32))
    for place in tl.static_range(TOP_K):
        assignment = token * TOP_K + place
        # As wide as the columns: Triton 3.9's interpreter takes no scalar in a mask.
        expert = tl.load(ids + assignment) - first + column * 0
        held = (expert >= 0) & (expert < count)
        part = tl.load(y + assignment * size + column, (column < size) & held, other=0)
        if WEIGHED:
            total += part.to(tl.float32)
        else:
            total += part.to(tl.float32) * tl.load(weights + assignment)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), column < size)


def mix(
    x: Tensor,
    routed: Routed,
    up: PlainExperts | PackedExperts,
    down: PlainExperts | PackedExperts,
    gating: Gating,
    first: int = 0,
    weighs_inputs: bool = False,
    beside: Beside | None = None,
    adapters: ExpertAdapters | None = None,
) -> Tensor:
    """As `ops.mix_experts`; what experts give is rounded to x's type, except where assignments
    compute alone: those of `routed` without groups, and some others."""
    (tokens, hidden), top_k = x.shape, routed.ids.shape[1]
    ups, downs = _ups(up, down), _parts(down, 1)
    if _better_alone(routed, downs[0].matrix.layout, x.dtype):
        routed = routed._replace(groups=None)
    step = _Step.of(routed, first, down, weighs_inputs)
    if not tokens or not (step.groups is None or has_dot(x)):
        mixed = _expert_by_expert(x, step, ups, downs, gating, adapters)
        return mixed if beside is None else activation.add_gated(mixed, *beside)
    given = _Source.of(x, step)
    if adapters is None:
        inner = _Source(_up(given, step, ups, gating))
        y = _projected(inner, step, downs, None, torch.float32 if step.groups is None else x.dtype)
    else:
        y = _adapted(given, step, ups, downs, gating, adapters)
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    shared, gate = beside or (None, None)
    _combine[(tokens, triton.cdiv(hidden, 1024))](
        y, step.ids, step.weights, out, shared, gate, first, step.count, hidden,
        0 if shared is None else shared.stride(0), 0 if gate is None else gate.stride(0),
        TOP_K=top_k, WEIGHED=weighs_inputs, BLOCK=1024,
    )  # fmt: skip
    return out


def _better_alone(routed: Routed, layout: Layout, dtype: torch.dtype) -> bool:
    """Whether assignments that are in order compute alone all the same: where decoding in tiles
    costs more than to read an expert twice. As measured on an H100."""
    if routed.groups is None or (layout.in_pairs and dtype == torch.bfloat16):
        return False
    return routed.ids.numel() <= min(_MOST_ALONE, 2 * routed.groups.counts.numel())


def _adapted(
    given: "_Source",
    step: "_Step",
    ups: "tuple[_Part, ...]",
    downs: "tuple[_Part, ...]",
    gating: Gating,
    adapters: ExpertAdapters,
) -> Tensor:
    """[assignments, hidden]: what each expert says to its token, adapters included. It is rounded
    where it is without adapters."""
    places = step.places(adapters.slots)
    x, size, sharers = given.x, ups[0].rows, given.sharers
    both = torch.empty((len(places), size * len(ups)), dtype=torch.float32, device=x.device)
    for part, out in zip(ups, both.split(size, dim=1), strict=True):
        _project(given, step, (part,), None, out)
    rows = x
    if given.weights is not None:
        rows, sharers = x.repeat_interleave(sharers, 0) * given.weights.view(-1, 1), 1
    _adapt(both, rows, adapters.up, places, sharers)
    inner = _gated(both, ups, gating).to(x.dtype)
    y = _projected(_Source(inner), step, downs, None, torch.float32)
    _adapt(y, inner, adapters.down, places)
    return y if step.groups is None else y.to(x.dtype)


def _adapt(
    out: Tensor, x: Tensor, tensors: AdapterTensors, places: Tensor, sharers: int = 1
) -> None:
    shards = tensors.a.shape[1]
    sizes = (out.shape[1] // shards,) * shards
    add_of_shared(out, x, *tensors, places, sizes, sharers)


class Product(NamedTuple):
    """A part of `mix` that is cut into tiles."""

    case: Case
    compute: Callable[[], Tensor]


def products_of_tiles(
    x: Tensor,
    routed: Routed,
    up: PlainExperts | PackedExperts,
    down: PlainExperts | PackedExperts,
    gating: Gating,
    first: int = 0,
    weighs_inputs: bool = False,
) -> list[Product]:
    """The products of `mix` by the groups of `routed`, each to compute by itself. As
    `Ops.mix_experts` otherwise."""
    ups, downs = _ups(up, down), _parts(down, 1)
    step = _Step.of(routed, first, down, weighs_inputs)
    given = _Source.of(x, step)
    inner = _Source(_up(given, step, ups, gating))
    jobs: list[tuple[_Source, tuple[_Part, ...], Gating | None]] = [(inner, downs, None)]
    if _form_a_pair(ups):
        jobs.append((given, ups, gating))
    else:
        jobs += [(given, (part,), None) for part in ups]
    return [
        Product(
            _case(step, parts, how, x.dtype), partial(_projected, source, step, parts, how, x.dtype)
        )
        for source, parts, how in jobs
    ]


def shapes(up: PlainExperts | PackedExperts, down: PlainExperts | PackedExperts) -> Hashable:
    """What `Case`s differ in but for tokens: layers with the same are cut alike."""
    parts = (*_ups(up, down), *_parts(down, 1))
    return tuple((part.matrix.layout, part.rows, part.matrix.columns) for part in parts)


class _Step(NamedTuple):
    """Who goes where, of the experts that are held."""

    ids: Tensor
    weights: Tensor
    groups: Grouped | None
    """None where assignments compute alone."""
    first: int
    count: int  # type: ignore[assignment]  # not a tuple's count of equals
    weighs_inputs: bool

    @classmethod
    def of(
        cls, routed: Routed, first: int, down: PlainExperts | PackedExperts, weighs_inputs: bool
    ) -> Self:
        count = down.count if isinstance(down, PackedExperts) else len(down.weight)
        ids, weights, groups = routed
        if groups is not None:
            held = slice(first, first + count)
            groups = groups._replace(counts=groups.counts[held], offsets=groups.offsets[held])
        return cls(ids.contiguous(), weights.contiguous(), groups, first, count, weighs_inputs)

    def places(self, slots: Tensor) -> Tensor:
        """int32 [assignments]: where `ExpertAdapters` have each one's expert, -1 for none."""
        expert = self.ids - self.first
        there = (slots[:, None] >= 0) & (expert >= 0) & (expert < self.count)
        return torch.where(there, slots[:, None] * self.count + expert, -1).int().flatten()


class _Source(NamedTuple):
    """What experts read."""

    x: Tensor
    """[assignments / sharers, columns]."""
    sharers: int = 1
    """Assignments that read the same row."""
    weights: Tensor | None = None
    """What each assignment's row is multiplied with, [assignments]."""

    @classmethod
    def of(cls, x: Tensor, step: _Step) -> Self:
        """The tokens themselves, x [tokens, hidden]."""
        return cls(x.contiguous(), step.ids.shape[1], step.weights if step.weighs_inputs else None)


def _ups(up: PlainExperts | PackedExperts, down: PlainExperts | PackedExperts) -> tuple[_Part, ...]:
    """Gate and up, or one that is both."""
    if isinstance(up, PackedExperts):
        return _parts(up, len(up.parts))
    inner = down.parts[0].columns if isinstance(down, PackedExperts) else down.weight.shape[2]
    return _parts(up, up.weight.shape[1] // inner)


def _parts(experts: PlainExperts | PackedExperts, count: int) -> tuple[_Part, ...]:
    """`count` parts of a plain weight are one below the other."""
    rows = experts.weight.shape[1] // count if isinstance(experts, PlainExperts) else experts.rows
    biases = [None] * count if experts.bias is None else experts.bias.split(rows, dim=1)
    if isinstance(experts, PackedExperts):
        return tuple(
            _Part(matrix, rows, 0, rows, own)
            for matrix, own in zip(experts.parts, biases, strict=True)
        )
    matrix = GpuMatrix.of(experts.weight.flatten(0, 1))
    return tuple(
        _Part(matrix, rows, part * rows, count * rows, own) for part, own in enumerate(biases)
    )


def _form_a_pair(parts: tuple[_Part, ...]) -> bool:
    """Whether one kernel multiplies and gates them: two that are stored alike."""
    return len(parts) == 2 and parts[0].matrix.layout == parts[1].matrix.layout


def _up(source: _Source, step: _Step, parts: tuple[_Part, ...], gating: Gating) -> Tensor:
    """[assignments, size]: the gated products of each with its expert's matrices."""
    if _form_a_pair(parts):
        return _projected(source, step, parts, gating, source.x.dtype)
    if len(parts) == 1:
        return _gated(_projected(source, step, parts, None, source.x.dtype), parts, gating)
    x, size = source.x, parts[0].rows
    both = torch.empty((step.ids.numel(), 2 * size), dtype=x.dtype, device=x.device)
    _project(source, step, parts[:1], None, both[:, :size])
    _project(source, step, parts[1:], None, both[:, size:])
    return _gated(both, parts, gating)


def _gated(products: Tensor, parts: tuple[_Part, ...], gating: Gating) -> Tensor:
    if len(parts) == 2:
        return activation.gate(products, gating)
    return activation.activate_mul(products, products, gating.activation)


def _projected(
    source: _Source,
    step: _Step,
    parts: tuple[_Part, ...],
    gating: Gating | None,
    dtype: torch.dtype,
) -> Tensor:
    """[assignments, rows of a part], as `_project`."""
    out = torch.empty((step.ids.numel(), parts[0].rows), dtype=dtype, device=source.x.device)
    _project(source, step, parts, gating, out)
    return out


def _case(step: _Step, parts: tuple[_Part, ...], gating: Gating | None, dtype: torch.dtype) -> Case:
    matrix, mean = parts[0].matrix, triton.cdiv(step.ids.numel(), step.count)
    return case(gating is not None, matrix.layout, dtype, parts[0].rows, matrix.columns, mean)


def _project(
    source: _Source, step: _Step, parts: tuple[_Part, ...], gating: Gating | None, out: Tensor
) -> None:
    """Each assignment's row of `source` times its expert's matrix, or two of them and gated, into
    its row of `out`."""
    one, two, (x, sharers, weights) = parts[0], parts[-1], source
    matrix, number = one.matrix, step.ids.numel()
    if step.groups is not None:
        x = arranged(x, matrix.layout)
    how = gating or Gating()
    biased = (one.bias is not None, 0 if one.bias is None else one.bias.stride(0))
    matrices = (*matrix.tensors, one.bias, *two.matrix.tensors, two.bias)
    sizes = (
        x.stride(0), out.stride(0), one.rows, matrix.rows, one.first, two.first, one.stride,
        biased[1], matrix.columns, how.alpha, how.limit,
    )  # fmt: skip
    kinds = {
        **kind_of(matrix, x), "GATED": gating is not None, "KIND": how.activation,
        "CLAMPS": how.limit != 0,
    }  # fmt: skip
    if step.groups is None:
        tile = rows_of_tile(matrix.layout, x.dtype, one.rows * len(parts))
        _alone[(number * triton.cdiv(one.rows, tile // len(parts)),)](
            x, step.ids, weights, out, *matrices, number, step.first, step.count, sharers, *sizes,
            ROWS=tile, **kinds, num_warps=4, num_stages=2,
        )  # fmt: skip
        return
    cut = form(_case(step, parts, gating, x.dtype), capability(x))
    tiles = number // cut.tokens + min(step.count, number)
    _grouped[(tiles, triton.cdiv(one.rows, cut.rows))](
        x, *step.groups[:2], step.groups.order, weights, out, *matrices, step.count, sharers,
        *sizes, TOKENS=cut.tokens, ROWS=cut.rows,
        EXPERTS=triton.next_power_of_2(step.count), **kinds, num_warps=cut.warps,
        num_stages=cut.stages,
    )  # fmt: skip


def _expert_by_expert(
    x: Tensor,
    step: _Step,
    ups: tuple[_Part, ...],
    downs: tuple[_Part, ...],
    gating: Gating,
    adapters: ExpertAdapters | None,
) -> Tensor:
    """With the library's products, for it has tensor cores where Triton has none."""
    places = None if adapters is None else step.places(adapters.slots).view(step.ids.shape)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(step.count):
        token, place = torch.where(step.ids == step.first + expert)
        if not len(token):
            continue
        share = step.weights[token, place, None]
        given = (x[token] * share).to(x.dtype) if step.weighs_inputs else x[token]
        both = torch.cat([_product(given, part, expert) for part in ups], dim=1)
        own = None if places is None else places[token, place]
        if adapters is not None and own is not None:
            _adapt(both, given, adapters.up, own)
        inner = _gated(both, ups, gating)
        y = _product(inner, downs[0], expert).float()
        if adapters is not None and own is not None:
            _adapt(y, inner, adapters.down, own)
        out.index_add_(0, token, y if step.weighs_inputs else y * share)
    return out.to(x.dtype)


def _product(x: Tensor, part: _Part, expert: int) -> Tensor:
    weight = decode(part.matrix, x.dtype, part.first + expert * part.stride, part.rows)
    return matmul(x, weight, None if part.bias is None else part.bias[expert].to(x.dtype))
