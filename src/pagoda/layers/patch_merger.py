"""From patches to the embeddings of tokens."""

import torch
from torch import nn

from pagoda.arch.vision import MergerSpec, VisionSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.norm import LayerNorm, RMSNorm
from pagoda.layers.patches import Slices, by_rows, tower_norm, whole_linear


class PatchMerger(nn.Module):
    """`merge * merge` neighbouring patches to one token's embedding."""

    def __init__(
        self, context: LayerContext, spec: VisionSpec, out_size: int, norm_merged: bool = False
    ):
        super().__init__()
        self.hidden_size = spec.hidden_size
        self.width = spec.hidden_size * spec.merge**2
        self.flops = 2 * self.width * (self.width + out_size)
        self.norm_merged = norm_merged
        size = self.width if norm_merged else spec.hidden_size
        self.norm = tower_norm(context, spec, size)
        self.up = whole_linear(context, self.width, self.width)
        self.down = whole_linear(context, self.width, out_size)

    def slices(self, x: torch.Tensor, unit: float) -> Slices:
        """[patches, hidden], neighbours in a row -> [tokens, out_size]."""
        grouped = x.reshape(-1, self.width)
        return (yield from by_rows(self._merge, grouped, unit / self.flops))

    def _merge(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, width of their patches]."""
        if self.norm_merged:
            x = self.norm(x)
        else:
            x = self.norm(x.reshape(-1, self.hidden_size)).reshape(-1, self.width)
        out: torch.Tensor = self.down(ops.activate(self.up(x), "gelu"))
        return out


class NarrowMerger(nn.Module):
    """InternVL's, and Pixtral's as Mistral Small 3.1 has it (`MergerSpec`)."""

    def __init__(self, context: LayerContext, spec: VisionSpec, merger: MergerSpec, out_size: int):
        super().__init__()
        hidden, self.num_patches = spec.hidden_size, spec.merge**2
        width, bias = hidden * self.num_patches, merger.bias
        inner = hidden if merger.reduced else width
        self.flops = 2 * (width * inner + out_size * (inner + out_size))
        self.activation = merger.activation
        self.reduced = merger.reduced
        self.norm: RMSNorm | LayerNorm
        if merger.reduced:
            self.norm = RMSNorm(context, hidden, merger.norm_eps)
            self.reduce = whole_linear(context, width, hidden, bias=False)
        else:
            self.norm = LayerNorm(context, width, merger.norm_eps)
        self.up = whole_linear(context, inner, out_size, bias=bias)
        self.down = whole_linear(context, out_size, out_size, bias=bias)

    def slices(self, x: torch.Tensor, unit: float) -> Slices:
        """[patches, hidden], neighbours in a row -> [tokens, out_size]."""
        grouped = x.unflatten(0, (-1, self.num_patches)).flatten(1)
        return (yield from by_rows(self._merge, grouped, unit / self.flops))

    def _merge(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, width of their patches]."""
        if self.reduced:
            normed = self.norm(x.unflatten(1, (self.num_patches, -1)))
            x = self.reduce(normed.transpose(1, 2).flatten(1))
        else:
            x = self.norm(x)
        out: torch.Tensor = self.down(ops.activate(self.up(x), self.activation))
        return out


class Adapter(nn.Module):
    """Llama 4's (`VisionSpec.adapter`)."""

    def __init__(self, context: LayerContext, spec: VisionSpec, size: int, out_size: int):
        super().__init__()
        self.width = spec.hidden_size * spec.merge**2
        self.flops = 2 * size * (self.width + size + out_size)
        self.up = whole_linear(context, self.width, size, bias=False)
        self.down = whole_linear(context, size, size, bias=False)
        self.projection = whole_linear(context, size, out_size, bias=False)

    def slices(self, x: torch.Tensor, unit: float) -> Slices:
        """[patches, hidden], neighbours in a row -> [tokens, out_size]."""
        return (yield from by_rows(self._merge, x.reshape(-1, self.width), unit / self.flops))

    def _merge(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, width of their patches]."""
        inner = ops.activate(self.up(x), "gelu")
        out: torch.Tensor = self.projection(ops.activate(self.down(inner), "gelu"))
        return out


def merger_of(
    context: LayerContext, spec: VisionSpec, out_size: int
) -> PatchMerger | NarrowMerger | Adapter:
    """The tower's last layers."""
    if spec.adapter is not None:
        return Adapter(context, spec, spec.adapter, out_size)
    if spec.merger is None:
        return PatchMerger(context, spec, out_size)
    return NarrowMerger(context, spec, spec.merger, out_size)
