"""Inputs and tolerances that tests of small kernels share."""

import torch

# Kernels round once, references sometimes after each step.
TOLERANCE = {
    torch.float32: {"rtol": 4e-6, "atol": 4e-6},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


def spread_rows(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Random numbers in rows that lie apart, with NaN between them."""
    buffer = torch.full((*shape[:-1], shape[-1] + 5), torch.nan, dtype=dtype, device=device)
    x = buffer[..., 2:-3]
    x.copy_(torch.randn(shape))
    return x
