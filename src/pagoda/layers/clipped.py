"""Linear layers that keep what they read and what they give within bounds."""

from functools import partial

import torch
from torch import nn

from pagoda.layers.context import LayerContext
from pagoda.layers.linear import replicated
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector

_BOUNDS = 4


class Clip(WeightedLayer):
    """The least and the largest number that a layer reads, and those that it gives; fp32 [4]."""

    params = ("weight",)

    def __init__(self, context: LayerContext):
        super().__init__()
        self.weight = torch.zeros(_BOUNDS, dtype=torch.float32, device=context.device)
        self.bounds = [0.0] * _BOUNDS

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return tuple(LoadTarget((1,), partial(load_vector, part)) for part in self.weight.split(1))

    def finalize(self) -> None:
        self.bounds = self.weight.tolist()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class ClippedLinear(nn.Module):
    """Every rank holds it whole."""

    def __init__(self, context: LayerContext, in_features: int, out_features: int):
        super().__init__()
        self.linear = replicated(context, in_features, out_features)
        self.clip = Clip(context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in_features] -> [tokens, out_features]."""
        least, largest, least_out, largest_out = self.clip.bounds
        out: torch.Tensor = self.linear(x.clamp(least, largest))
        return out.clamp(least_out, largest_out)


class ClippedLinears(nn.Module):
    """Several side by side: their bounds may differ, so that they are no single product."""

    def __init__(self, context: LayerContext, in_features: int, sizes: tuple[int, ...]):
        super().__init__()
        self.parts = nn.ModuleList(ClippedLinear(context, in_features, size) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, in_features] -> [tokens, all sizes]."""
        return torch.cat([part(x) for part in self.parts], dim=-1)
