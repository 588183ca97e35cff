"""Activations as products with packed matrices see them; the rest is the decoded weight's."""

import torch

Tensor = torch.Tensor


def round_activations(x: Tensor) -> Tensor:
    """x [..., columns] as 8-bit kernels see it: per 16 columns whole multiples of the largest
    magnitude / 127, in fp64 so that the multiples are exact."""
    blocks = x.float().unflatten(-1, (-1, 16))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, 1 / scale)
    out: Tensor = ((blocks * inverse).round().double() * scale.double()).flatten(-2)
    return out


def round_with_multipliers(x: Tensor) -> Tensor:
    """As `round_activations`, but the steps are whole multiples of a row's largest step / 16384
    (rounded up): how AVX2 keeps whole numbers over 32 columns."""
    rows = x.float()
    largest = rows.abs().amax(-1, keepdim=True).unsqueeze(-1)
    blocks = rows.unflatten(-1, (-1, 16))
    unit = largest / (127 * 16384)
    multiplier = (blocks.abs().amax(-1, keepdim=True) * (16384 / largest)).ceil()
    multiplier = multiplier.nan_to_num(16384).clamp(1, 16384)
    inverse = torch.where(unit < torch.finfo(torch.float32).tiny, 0.0, 1 / (unit * multiplier))
    out: Tensor = (
        (blocks * inverse).round().double() * multiplier.double() * unit.double()
    ).flatten(-2)
    return out


def round_to_words(x: Tensor) -> Tensor:
    """x [..., columns] as whole multiples of a row's largest magnitude / 32767."""
    unit = x.float().abs().amax(-1, keepdim=True) / 32767
    inverse = torch.where(unit < torch.finfo(torch.float32).tiny, 0.0, 1 / unit)
    return (x.float() * inverse).round().double() * unit.double()
