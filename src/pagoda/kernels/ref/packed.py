"""What products with packed matrices compute, on the decoded weight."""

import torch

Tensor = torch.Tensor


def round_activations(x: Tensor) -> Tensor:
    """x [..., columns] as 8-bit kernels see it: per 16 columns whole multiples of the largest
    magnitude / 127, in fp64 so that the multiples are exact."""
    blocks = x.float().unflatten(-1, (-1, 16))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, 1 / scale)
    return ((blocks * inverse).round().double() * scale.double()).flatten(-2)


def packed_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [tokens, columns], fp32, times a decoded quantized weight [rows, columns] transposed."""
    return (round_activations(x) @ weight.double().t()).float()
