"""Activations, gated and plain."""

import torch
import torch.nn.functional as F


def activate_and_mul(x: torch.Tensor, kind: str) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return activate(gate, kind) * up


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * gate.sigmoid()


def add_gated(x: torch.Tensor, added: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    wide = added.float() if gate is None else added.float() * gate.float().sigmoid()
    return (x.float() + wide).to(x.dtype)


def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


def activate(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}[kind](x)
