"""Activations of single elements, gated and plain.

All compute in fp32 and round once.
"""

import torch
import triton
import triton.language as tl

from pagoda.kernels.ref.experts import Gating

Tensor = torch.Tensor

_BLOCK = 1024


@triton.jit
def _activated(x, kind: tl.constexpr):
    """fp32 x through `kind`, one of those of `kernels.ops.activate`."""
    if kind == "silu":
        result = x * tl.sigmoid(x)
    elif kind == "relu":
        # Not maximum: NaN must stay NaN.
        result = tl.where(x < 0, 0.0, x)
    elif kind == "identity":
        result = x
    elif kind == "gelu_quick":
        result = x * tl.sigmoid(1.702 * x)
    elif kind == "gelu":
        result = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(kind == "gelu_tanh")
        # (1 + tanh(u)) / 2 is sigmoid(2 u); 1.59... is 2 sqrt(2 / pi).
        result = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return result


@triton.jit
def gated(gate, up, alpha, limit, kind: tl.constexpr, clamps: tl.constexpr):
    """What a `Gating` makes of fp32 gate and up; `clamps` if it has a limit."""
    if clamps:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        result = gate * tl.sigmoid(alpha * gate) * (up + 1.0)
    else:
        result = _activated(gate, kind) * up
    return result


@triton.jit
def _place(size, block: tl.constexpr):
    """(int64 row, columns [block], which of them exist) of a program."""
    # In one dimension: a GPU takes 65,535 programs at most in the others.
    blocks = tl.cdiv(size, block)
    column = tl.program_id(0) % blocks * block + tl.arange(0, block)
    return (tl.program_id(0) // blocks).to(tl.int64), column, column < size


@triton.jit
def _gate(
    x, out, size, stride, alpha, limit, kind: tl.constexpr, clamps: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(size, block)
    gate = tl.load(x + row * stride + column, there).to(tl.float32)
    up = tl.load(x + row * stride + size + column, there).to(tl.float32)
    result = gated(gate, up, alpha, limit, kind, clamps)
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


@triton.jit
def _with_gate(
    x, added, gate, out, size, stride, added_stride, gate_stride, kind: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row, column, there = _place(size, block)
    result = tl.load(x + row * stride + column, there).to(tl.float32)
    if kind == "multiply":
        result *= tl.sigmoid(tl.load(gate + row * gate_stride + column, there).to(tl.float32))
    elif kind != "add" and kind != "add_gated":
        gates = tl.load(gate + row * gate_stride + column, there).to(tl.float32)
        result *= _activated(gates, kind)
    else:
        more = tl.load(added + row * added_stride + column, there).to(tl.float32)
        if kind == "add_gated":
            more *= tl.sigmoid(tl.load(gate + row * gate_stride).to(tl.float32))
        result += more
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


@triton.jit
def _map(x, out, size, stride, factor, kind: tl.constexpr, block: tl.constexpr):
    row, column, there = _place(size, block)
    wide = tl.load(x + row * stride + column, there).to(tl.float32)
    if kind == "scale":
        result = wide * factor
    elif kind == "soft_cap":
        # tanh(u) is 2 sigmoid(2 u) - 1.
        result = factor * (2.0 * tl.sigmoid(2.0 * wide / factor) - 1.0)
    else:
        result = _activated(wide, kind)
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), there)


def activate_and_mul(x: Tensor, kind: str = "silu") -> Tensor:
    """As `kernels.ops.activate_and_mul`."""
    return gate(x, Gating(activation=kind))


def gate(x: Tensor, gating: Gating) -> Tensor:
    """As `kernels.ref.experts.gate`: x [..., 2 * size] = [gate, up] made one [..., size]."""
    flat = _rows_of(x)
    rows, size = flat.shape[0], flat.shape[1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    _gate[_grid(rows, size)](
        flat, out, size, flat.stride(0), gating.alpha, gating.limit, kind=gating.activation,
        clamps=gating.limit != 0, block=_BLOCK,
    )  # fmt: skip
    return out


def activate_mul(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    """As `kernels.ops.activate_mul`."""
    return _combined(x, x, gate, kind)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """As `kernels.ops.sigmoid_mul`."""
    return _combined(x, x, gate, "multiply")


def add_gated(x: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
    """As `kernels.ops.add_gated`."""
    return _combined(x, added, gate, "add" if gate is None else "add_gated")


def add_to(x: Tensor, residual: Tensor) -> Tensor:
    """As `kernels.ops.add_to`."""
    return _combined(residual, x, None, "add")


def activate(x: Tensor, kind: str) -> Tensor:
    """As `kernels.ops.activate`."""
    return _mapped(x, kind)


def scale(x: Tensor, factor: float) -> Tensor:
    """As `kernels.ops.scale`."""
    return _mapped(x, "scale", factor)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """As `kernels.ops.soft_cap`."""
    return _mapped(x, "soft_cap", cap)


def _combined(x: Tensor, added: Tensor, gate: Tensor | None, kind: str) -> Tensor:
    rows, size = x.shape
    gates = x if gate is None else gate
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _with_gate[_grid(rows, size)](
        x, added, gates, out, size, x.stride(0), added.stride(0), gates.stride(0), kind=kind,
        block=_BLOCK,
    )  # fmt: skip
    return out


def _mapped(x: Tensor, kind: str, factor: float = 0.0) -> Tensor:
    # One long row where memory is one piece: small rows would leave most of a program idle.
    flat = x.view(1, -1) if x.is_contiguous() else _rows_of(x)
    rows, size = flat.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _map[_grid(rows, size)](flat, out, size, flat.stride(0), factor, kind=kind, block=_BLOCK)
    return out


def _rows_of(x: Tensor) -> Tensor:
    flat = x.flatten(0, -2) if x.dim() > 1 else x[None]
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _grid(rows: int, size: int) -> tuple[int]:
    return (rows * triton.cdiv(size, _BLOCK),)
