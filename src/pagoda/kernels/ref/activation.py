"""Activations, gated and plain."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype),
    "identity": lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
}


def activate_and_mul(x: torch.Tensor, kind: str = "silu") -> torch.Tensor:
    """As `Ops.activate_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    return activate(gate, kind) * up


def activate_mul(x: torch.Tensor, gate: torch.Tensor, kind: str) -> torch.Tensor:
    """As `Ops.activate_mul`."""
    return x * activate(gate, kind)


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As `Ops.sigmoid_mul`."""
    return x * gate.sigmoid()


def add_gated(x: torch.Tensor, added: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """As `Ops.add_gated`."""
    wide = added.float() if gate is None else added.float() * gate.float().sigmoid()
    return (x.float() + wide).to(x.dtype)


def add_to(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """As `Ops.add_to`."""
    return x.to(residual.dtype) + residual


def keep_sum(x: torch.Tensor, added: torch.Tensor, kept: torch.Tensor) -> None:
    """As `Ops.keep_sum`."""
    kept[: len(x)] = x.float() + added.float()


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """As `Ops.scale`."""
    return x * factor


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """As `Ops.soft_cap`."""
    return cap * torch.tanh(x / cap)


def activate(x: torch.Tensor, kind: str) -> torch.Tensor:
    """As `Ops.activate`."""
    return _ACTIVATIONS[kind](x)
