"""Convolutions over pictures, whose pixels lie row by row: [height, width, channels]. Edges are
padded with zeros so that a stride of n leaves every n-th pixel ("same")."""

from collections.abc import Callable, Generator
from dataclasses import replace

import torch
from torch import nn

from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, Shard
from pagoda.layers.loading import LoadTarget, WeightedLayer
from pagoda.layers.patches import ranges
from pagoda.quant.base import ShardSource

Picture = torch.Tensor
"""[height, width, channels]."""
Work = Generator[None, None, Picture]
"""Slices of work (`layers.patches.Slices`), a picture being the result."""


class PixelConv(ColumnLinear):
    """Over all channels of a square of pixels: a product with each square. Every rank holds it
    whole."""

    def __init__(
        self,
        context: LayerContext,
        in_channels: int,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        bias: bool = False,
    ):
        super().__init__(context, in_channels * kernel**2, (Shard.whole(channels),), bias)
        self.kernel, self.stride = kernel, stride
        self._shape = (channels, in_channels, kernel, kernel)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (whole,) = super().targets(param)
        return (whole if param == "bias" else replace(whole, shape=self._shape),)

    def squares(self, x: Picture, rows: slice) -> torch.Tensor:
        """What some rows of the result are products of: [pixels, channels * kernel**2]."""
        if self.kernel == 1:
            return x[rows].flatten(0, 1)
        seen = around(x, self.kernel, self.stride, rows)
        unfolded = seen.unfold(0, self.kernel, self.stride).unfold(1, self.kernel, self.stride)
        return unfolded.flatten(2).flatten(0, 1)


class ChannelConv(WeightedLayer):
    """Over each channel by itself; the weight is fp32 [kernel, kernel, channels], and every rank
    holds it whole."""

    params = ("weight",)

    def __init__(self, context: LayerContext, channels: int, kernel: int, stride: int = 1):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        shape = (kernel, kernel, channels)
        self.weight = torch.empty(shape, dtype=torch.float32, device=context.device)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return (LoadTarget((self.weight.shape[2], 1, self.kernel, self.kernel), self._load),)

    def _load(self, source: ShardSource) -> None:
        read = ops.dequantize(source.read(), source.storage)
        self.weight.copy_(read.view(-1, self.kernel, self.kernel).permute(1, 2, 0))

    def rows(self, x: Picture, rows: slice) -> Picture:
        """Some rows of the result."""
        seen = around(x, self.kernel, self.stride, rows)
        return ops.channel_conv(seen, self.weight, self.stride)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


def around(x: Picture, kernel: int, stride: int, rows: slice) -> Picture:
    """What kernels of some rows of the result see of x, zeros beyond its edges included."""
    height, width, _ = x.shape
    top, _ = _padding(height, kernel, stride)
    begin, end = rows.start * stride - top, (rows.stop - 1) * stride - top + kernel
    inside = x[max(begin, 0) : min(end, height)]
    sides = _padding(width, kernel, stride)
    return nn.functional.pad(inside, (0, 0, *sides, max(-begin, 0), max(end - height, 0)))


def by_picture_rows(function: Callable[[slice], torch.Tensor], out: Picture, rows: float) -> Work:
    """`out` with what `function` gives for its rows, [rows, width, channels] or [pixels, channels],
    so many rows at a time."""
    for some in ranges(len(out), rows):
        out[some] = function(some).view(out[some].shape)
        yield
    return out


def reduced(size: int, stride: int) -> int:
    """Rows or columns of pixels that a stride leaves of so many."""
    return -(-size // stride)


def _padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros in front of and behind a side of so many pixels."""
    missing = max(0, (reduced(size, stride) - 1) * stride + kernel - size)
    return missing // 2, missing - missing // 2
