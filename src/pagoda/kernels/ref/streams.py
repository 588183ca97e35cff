"""Several hidden states of a token (arXiv 2301.13310), and what else only Gemma 3n computes."""

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def mix_streams(
    weights: Tensor, streams: Sequence[Tensor], added: Sequence[Tensor], plus: float = 0.0
) -> list[Tensor]:
    """As `Ops.mix_streams`."""
    factors = weights.unflatten(-1, (len(streams), len(added), 1)) + plus
    mixed = []
    for index, stream in enumerate(streams):
        total = stream
        for other, x in enumerate(added):
            total = total + factors[:, index, other] * x
        mixed.append(total)
    return mixed


def scale_columns(x: Tensor, weight: Tensor) -> Tensor:
    """As `Ops.scale_columns`."""
    return (x * weight).to(x.dtype)


def match_rms(x: Tensor, like: Tensor, least: float) -> Tensor:
    """As `Ops.match_rms`."""
    own, wanted = (each.float().square().mean(-1, keepdim=True) for each in (x, like))
    return (x * (wanted.sqrt() / own.clamp(min=least).sqrt())).to(x.dtype)


def cut_columns(x: Tensor, cut: float) -> None:
    """As `Ops.cut_columns`."""
    wide = x.float()
    apart = wide - wide.mean(-1, keepdim=True)
    deviation = apart.square().mean(-1, keepdim=True).sqrt()
    x.copy_((apart - cut * deviation).clamp(min=0))
