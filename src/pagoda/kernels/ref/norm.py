"""Normalization by root mean square (arXiv 1910.07467) and by mean and variance (1607.06450)."""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `Ops.rms_norm`."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def norm_in_place(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """As `Ops.norm_in_place`."""
    x.copy_(rms_norm(x, weight, eps))


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None = None,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Ops.add_rms_norm`."""
    wide = x.to(residual.dtype)
    total = wide + residual if added is None else (rms_norm(wide, added, eps) + residual) * scale
    return rms_norm(total, weight, eps).to(x.dtype), total


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `Ops.layer_norm`."""
    total = x.float() if residual is None else x.float() + residual.float()
    return F.layer_norm(total, weight.shape, weight, bias, eps).to(x.dtype)
