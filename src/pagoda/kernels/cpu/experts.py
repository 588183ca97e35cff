"""A mixture of experts on packed matrices: pointers of torch tensors for the native kernels."""

from typing import Any, NamedTuple

import torch

from pagoda.kernels import cpu
from pagoda.kernels.cpu import packed
from pagoda.kernels.cpu.arguments import check
from pagoda.kernels.ref.adapters import AdapterTensors, ExpertAdapters
from pagoda.kernels.ref.experts import Gating, Routed
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor


class PackedExperts(NamedTuple):
    """`parts` matrices per expert and, if there are any, a bias."""

    parts: tuple[Any, ...]
    """Packed matrices of `matrix`, one per part."""
    rows: int
    """Rows of one expert in each part."""
    count: int  # type: ignore[assignment]  # not a tuple's count of equals
    bias: Tensor | None
    """fp32 [count, parts * rows]."""
    next_streamed: tuple[Any, ...] = ()
    """Packed matrices in files that a later layer reads, to be read ahead."""


def matrix(storage: str, count: int, rows: int, columns: int) -> Any:
    """Room for one part of all experts: each begins a panel, so that it is a matrix of its own."""
    return cpu.packed_matrix(storage, count * _padded(rows), columns)


def load(part: Any, expert: int, rows: int, first_row: int, raw: Tensor) -> None:
    """Pack uint8 [any, bytes per row] as rows of an expert that has `rows`, from `first_row` on."""
    packed.load(part, expert * _padded(rows) + first_row, raw)


def mix(
    x: Tensor,
    routed: Routed,
    up: PackedExperts,
    down: PackedExperts,
    gating: Gating,
    first: int,
    weighs_inputs: bool,
    adapters: ExpertAdapters | None = None,
) -> Tensor:
    """As `ops.mix_experts`, of packed matrices; computed in fp32."""
    wide = x.float().contiguous()
    tokens, hidden = x.shape
    if up.parts[0].columns != hidden or down.rows != hidden or up.count != down.count:
        raise ValueError(f"The experts' matrices do not fit {hidden} columns of x.")
    ids, weights = routed.ids.contiguous(), routed.weights.contiguous()
    if (ids.dtype, weights.dtype) != (torch.int64, torch.float32):
        raise ValueError(f"ids are {ids.dtype} and weights {weights.dtype}.")
    if ids.shape != weights.shape or len(ids) != tokens:
        raise ValueError("ids and weights must have a row per token.")
    out = empty((tokens, hidden))
    packed.native().experts(
        wide.data_ptr(), tokens, ids.data_ptr(), weights.data_ptr(), ids.shape[1], first, up.count,
        list(up.parts), _address(up.bias), down.parts[0], _address(down.bias),
        (up.rows, down.rows), cpu.activation(gating.activation), gating.alpha, gating.limit,
        weighs_inputs, list(down.next_streamed), out.data_ptr(),
        None if adapters is None else _beside(adapters, tokens, up, down),
    )  # fmt: skip
    return out.to(x.dtype)


def _beside(
    adapters: ExpertAdapters, tokens: int, up: PackedExperts, down: PackedExperts
) -> tuple[int, Any, int, tuple[int, int, int], tuple[int, int, int]]:
    """What the native kernel takes of adapters."""
    check("slots", adapters.slots, torch.int32, (tokens,))
    a = adapters.up.a
    return (
        adapters.slots.data_ptr(), cpu.float_type(a.dtype), a.shape[2],
        _pointers("up", adapters.up, up, a.dtype), _pointers("down", adapters.down, down, a.dtype),
    )  # fmt: skip


def _pointers(
    name: str, tensors: AdapterTensors, experts: PackedExperts, dtype: torch.dtype
) -> tuple[int, int, int]:
    parts, columns = len(experts.parts), experts.parts[0].columns
    places, _, max_rank, _ = tensors.a.shape
    check(f"A of {name}", tensors.a, dtype, (places, parts, max_rank, columns))
    check(f"B of {name}", tensors.b, dtype, (places, max_rank, parts * experts.rows))
    check(f"ranks of {name}", tensors.ranks, torch.int32, (places,))
    return tensors.a.data_ptr(), tensors.b.data_ptr(), tensors.ranks.data_ptr()


def _address(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.data_ptr()


def _padded(rows: int) -> int:
    unit = cpu.panel_rows()
    return -(-rows // unit) * unit
