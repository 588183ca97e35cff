"""Whisper's encoder: frames of a log-mel spectrogram in, embeddings of tokens out."""

import torch
from torch import nn

from pagoda.arch.hearing import AudioSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import ColumnLinear, Shard, replicated
from pagoda.layers.loading import LoadTarget
from pagoda.layers.norm import LayerNorm
from pagoda.layers.patches import UNIT_FLOPS, Grid, Slices, VisionBlock, by_rows

_KERNEL = 3


class Convolution(ColumnLinear):
    """Over time: a product with each three frames in a row."""

    def __init__(self, context: LayerContext, in_features: int, out_features: int):
        super().__init__(context, _KERNEL * in_features, (Shard.whole(out_features),), bias=True)
        self._channels = in_features

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (whole,) = super().targets(param)
        if param == "bias":
            return (whole,)
        return (LoadTarget((whole.shape[0], self._channels, _KERNEL), whole.load),)

    def slices(self, x: torch.Tensor, stride: int, unit: float) -> Slices:
        """x [frames, in_features], behind a frame of zeros -> [outputs, out_features], with
        gelu; the last output reads the last frame, or the one before it."""
        padded = nn.functional.pad(x, (0, 0, 1, 0))
        windows = padded.unfold(0, _KERNEL, stride).flatten(1)
        cost = 2 * self.in_features * self._shards[0].rows
        return (yield from by_rows(self._activated, windows, unit / cost))

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        return ops.activate(self(x.contiguous()), "gelu")


class Projection(nn.Module):
    """Two linear layers without biases."""

    def __init__(self, context: LayerContext, spec: AudioSpec, out_size: int):
        super().__init__()
        self.up = replicated(context, spec.stacked * spec.hidden_size, out_size)
        self.down = replicated(context, out_size, out_size)
        self._activation = spec.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, stacked outputs] -> [tokens, out_size]."""
        projected: torch.Tensor = self.down(ops.activate(self.up(x), self._activation))
        return projected


class AudioTower(nn.Module):
    def __init__(self, context: LayerContext, spec: AudioSpec, out_size: int):
        super().__init__()
        hidden = spec.hidden_size
        self.spec = spec
        self._context = context
        self.first = Convolution(context, spec.num_mels, hidden)
        self.second = Convolution(context, hidden, hidden)
        self.positions = VocabTable(context, spec.num_positions, hidden)
        self.blocks = nn.ModuleList(
            VisionBlock(context, spec, key_bias=False) for _ in range(spec.num_layers)
        )
        self.norm = LayerNorm(context, hidden, spec.norm_eps)
        self.projection: nn.Module | None = None
        if spec.projected:
            self.projection = replicated(context, hidden, out_size, bias=True)
        elif spec.deep:
            self.projection = Projection(context, spec, out_size)

    def slices(self, frames: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [frames + 2, num_mels] of one sound -> [1, tokens, out_size]; the two frames behind
        it are what convolutions look ahead to.

        ValueError for more frames than the model has places for.
        """
        device, spec = torch.device(self._context.device), self.spec
        unit = UNIT_FLOPS[device.type]
        frames = frames.to(device, self._context.dtype)
        x = yield from self.first.slices(frames, 1, unit)
        x = yield from self.second.slices(x, 2, unit)
        if len(x) > spec.num_positions:
            raise ValueError(f"it has {len(x)} places, and the model knows {spec.num_positions}")
        x = x + self.positions(torch.arange(len(x), device=device)).to(x.dtype)
        whole = torch.tensor([0, len(x)], dtype=torch.int32, device=device)
        room = x.new_empty((4, *x.shape))
        for block in self.blocks:
            assert isinstance(block, VisionBlock)
            x = yield from block.slices(x, room, None, whole, unit)
        if spec.pooled:
            pairs = x[: len(x) // 2 * 2].float().unflatten(0, (-1, 2))
            x = pairs.mean(1).to(x.dtype)
        embeddings: torch.Tensor = self.norm(x)
        if spec.stacked > 1:
            embeddings = embeddings.unflatten(0, (-1, spec.stacked)).flatten(1)
        return (embeddings if self.projection is None else self.projection(embeddings))[None]
