"""MobileNet-V5 as Gemma 3n has it (`arch.mobilenet`): pixels in, embeddings of tokens out."""

import torch
from torch import nn

from pagoda.arch.mobilenet import (
    EPS,
    STEM_KERNEL,
    Block,
    EdgeBlock,
    InvertedBlock,
    MobileNetSpec,
    QueryBlock,
)
from pagoda.arch.vision import VisionSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.convolution import (
    ChannelConv,
    Picture,
    PixelConv,
    Work,
    by_picture_rows,
    reduced,
)
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.norm import RMSNorm, Vector
from pagoda.layers.patches import UNIT_FLOPS, Grid, Slices

_ACTIVATION = "gelu_tanh"


class EdgeLayer(nn.Module):
    def __init__(self, context: LayerContext, spec: EdgeBlock):
        super().__init__()
        self.spec = spec
        self.up = PixelConv(context, spec.in_channels, spec.inner, spec.kernel, spec.stride)
        self.up_norm = RMSNorm(context, spec.inner, EPS)
        self.down = PixelConv(context, spec.inner, spec.channels)
        self.norm = RMSNorm(context, spec.channels, EPS)
        self.flops = 2 * spec.inner * (self.up.in_features + spec.channels)

    def slices(self, x: Picture, unit: float) -> Work:
        out = _room(x, self.spec)
        rest = x if _keeps_shape(self.spec) else None

        def made(rows: slice) -> torch.Tensor:
            inner = ops.activate(self.up_norm(self.up(self.up.squares(x, rows))), _ACTIVATION)
            return _added(self.norm(self.down(inner)), rest, rows)

        return (yield from by_picture_rows(made, out, unit / (self.flops * out.shape[1])))


class InvertedLayer(nn.Module):
    def __init__(self, context: LayerContext, spec: InvertedBlock):
        super().__init__()
        self.spec = spec
        if spec.first:
            stride = 1 if spec.middle else spec.stride
            self.first = ChannelConv(context, spec.in_channels, spec.first, stride)
            self.first_norm = RMSNorm(context, spec.in_channels, EPS)
        self.up = PixelConv(context, spec.in_channels, spec.inner)
        self.up_norm = RMSNorm(context, spec.inner, EPS)
        if spec.middle:
            self.middle = ChannelConv(context, spec.inner, spec.middle, spec.stride)
            self.middle_norm = RMSNorm(context, spec.inner, EPS)
        self.down = PixelConv(context, spec.inner, spec.channels)
        self.norm = RMSNorm(context, spec.channels, EPS)
        self.scale = Vector(context, spec.channels)

    def slices(self, x: Picture, unit: float) -> Work:
        spec, out = self.spec, _room(x, self.spec)
        rest = x if _keeps_shape(spec) else None
        if not spec.middle:
            cost = 2 * spec.inner * (spec.in_channels + spec.channels) * out.shape[1]
            return (
                yield from by_picture_rows(
                    lambda rows: self._narrowed(self._widened(x, rows), rest, rows),
                    out,
                    unit / cost,
                )
            )
        cost = 2 * spec.inner * spec.in_channels * x.shape[1]
        wide = x.new_empty((*x.shape[:2], spec.inner))
        wide = yield from by_picture_rows(lambda rows: self._widened(x, rows), wide, unit / cost)
        cost = 2 * spec.inner * (spec.middle**2 + spec.channels) * out.shape[1]
        return (
            yield from by_picture_rows(
                lambda rows: self._narrowed(self._between(wide, rows), rest, rows), out, unit / cost
            )
        )

    def _widened(self, x: Picture, rows: slice) -> torch.Tensor:
        if self.spec.first:
            pixels = self.first_norm(self.first.rows(x, rows).flatten(0, 1))
        else:
            pixels = x[rows].flatten(0, 1)
        return ops.activate(self.up_norm(self.up(pixels)), _ACTIVATION)

    def _between(self, wide: Picture, rows: slice) -> torch.Tensor:
        pixels = self.middle_norm(self.middle.rows(wide, rows).flatten(0, 1))
        return ops.activate(pixels, _ACTIVATION)

    def _narrowed(self, wide: torch.Tensor, rest: Picture | None, rows: slice) -> torch.Tensor:
        scaled = ops.scale_columns(self.norm(self.down(wide)), self.scale.weight)
        return _added(scaled, rest, rows)


class SharedPart(nn.Module):
    """What makes the keys or the values that all heads share."""

    def __init__(self, context: LayerContext, spec: QueryBlock):
        super().__init__()
        self.reduces = spec.kv_stride > 1
        if self.reduces:
            self.conv = ChannelConv(context, spec.channels, spec.kernel, spec.kv_stride)
            self.norm = RMSNorm(context, spec.channels, EPS)
        self.projection = PixelConv(context, spec.channels, spec.head_dim)

    def forward(self, x: Picture) -> torch.Tensor:
        """[height, width, channels] -> [places, head_dim]."""
        if self.reduces:
            rows = slice(0, reduced(len(x), self.conv.stride))
            x = self.norm(self.conv.rows(x, rows))
        found: torch.Tensor = self.projection(x.flatten(0, 1))
        return found


class QueryLayer(nn.Module):
    def __init__(self, context: LayerContext, spec: QueryBlock):
        super().__init__()
        self.spec = spec
        heads = spec.num_heads * spec.head_dim
        self.input_norm = RMSNorm(context, spec.channels, EPS)
        self.query = PixelConv(context, spec.channels, heads)
        self.key = SharedPart(context, spec)
        self.value = SharedPart(context, spec)
        self.output = PixelConv(context, heads, spec.channels)
        self.scale = Vector(context, spec.channels)

    def slices(self, x: Picture, unit: float) -> Work:
        spec, normed = self.spec, self.input_norm(x)
        k, v = self.key(normed), self.value(normed)
        yield

        def attended(rows: slice) -> torch.Tensor:
            q = self.query(normed[rows].flatten(0, 1)).unflatten(1, (spec.num_heads, -1))
            found = ops.query_attention(q, k, v, spec.head_dim**-0.5)
            output = ops.scale_columns(self.output(found.flatten(1)), self.scale.weight)
            return _added(output, x, rows)

        heads = spec.num_heads * spec.head_dim
        cost = 4 * heads * (spec.channels + len(k)) * x.shape[1]
        return (yield from by_picture_rows(attended, torch.empty_like(x), unit / cost))


class Fusion(nn.Module):
    """Two stages' pixels side by side, through two products; a token is the mean of a square."""

    def __init__(self, context: LayerContext, spec: MobileNetSpec, size: int):
        super().__init__()
        self._side = spec.tokens_side
        self.up = PixelConv(context, spec.fused, spec.inner)
        self.up_norm = RMSNorm(context, spec.inner, EPS)
        self.down = PixelConv(context, spec.inner, size)
        self.norm = RMSNorm(context, size, EPS)
        self.token_norm = RMSNorm(context, size, EPS)
        self._size = size
        self._flops = 2 * spec.inner * (spec.fused + size)

    def slices(self, fine: Picture, coarse: Picture, unit: float) -> Work:
        """[16, 16, size] of the last stage but one and of the last, whose pixels are as large as
        several of the former's."""
        height, width, _ = fine.shape
        down, across = height // self._side, width // self._side
        columns = torch.arange(width, device=fine.device) * coarse.shape[1] // width

        def tokens(rows: slice) -> torch.Tensor:
            own = torch.arange(rows.start * down, rows.stop * down, device=fine.device)
            larger = coarse[own * len(coarse) // height][:, columns]
            pixels = torch.cat((fine[own], larger), dim=2).flatten(0, 1)
            inner = ops.activate(self.up_norm(self.up(pixels)), _ACTIVATION)
            made = self.norm(self.down(inner)).float()
            squares = made.view(-1, down, self._side, across, self._size)
            normed: torch.Tensor = self.token_norm(squares.mean((1, 3)).to(fine.dtype))
            return normed

        out = fine.new_empty((self._side, self._side, self._size))
        cost = self._flops * down * width
        return (yield from by_picture_rows(tokens, out, unit / cost))


class MobileNet(nn.Module):
    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        assert spec.mobile_net is not None
        mobile, hidden = spec.mobile_net, spec.hidden_size
        self.spec = mobile
        self._context = context
        self.stem = PixelConv(context, 3, mobile.stem, STEM_KERNEL, 2, bias=True)
        self.stem_norm = RMSNorm(context, mobile.stem, EPS)
        self.blocks = nn.ModuleList(
            _layer(context, block) for stage in mobile.stages for block in stage
        )
        self.fusion = Fusion(context, mobile, hidden)
        self.words = VocabTable(context, mobile.num_words, hidden)
        self.word_norm = RMSNorm(context, hidden, spec.norm_eps)
        # What comes in is to be multiplied by the root of its width, which a norm takes off again.
        self.token_norm = RMSNorm(context, hidden, spec.norm_eps / hidden)
        self.projection = replicated(context, hidden, out_size)
        self._eps = spec.norm_eps

    def slices(self, pixels: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [pixels, 3] of one picture, row by row -> [1, tokens, out_size], the token that ends
        a picture included.

        ValueError for a picture whose sides are no multiples of `MobileNetSpec.side_unit`.
        """
        _, height, width = grid
        if height % self.spec.side_unit or width % self.spec.side_unit:
            raise ValueError(
                f"it has {height} x {width} pixels, and the model reads multiples of "
                f"{self.spec.side_unit}"
            )
        device = torch.device(self._context.device)
        unit = UNIT_FLOPS[device.type]
        x = pixels.to(device, self._context.dtype).view(height, width, 3)
        x = yield from self._stemmed(x, unit)
        fine, layers = x, iter(self.blocks)
        for stage in self.spec.stages:
            fine = x
            for _ in stage:
                layer = next(layers)
                assert isinstance(layer, EdgeLayer | InvertedLayer | QueryLayer)
                x = yield from layer.slices(x, unit)
        tokens = yield from self.fusion.slices(fine, x, unit)
        end = torch.tensor([self.spec.end_word], device=device)
        normed = torch.cat(
            (self.token_norm(tokens.flatten(0, 1)), self.word_norm(self.words(end).to(x.dtype)))
        )
        projected = self.projection(normed)
        ones = torch.ones(projected.shape[1], device=device)
        return ops.rms_norm(projected, ones, self._eps)[None]

    def _stemmed(self, x: Picture, unit: float) -> Work:
        def rows_of(rows: slice) -> torch.Tensor:
            return ops.activate(self.stem_norm(self.stem(self.stem.squares(x, rows))), _ACTIVATION)

        out = x.new_empty((len(x) // 2, x.shape[1] // 2, self.spec.stem))
        cost = 2 * self.stem.in_features * self.spec.stem * out.shape[1]
        return (yield from by_picture_rows(rows_of, out, unit / cost))


def _layer(context: LayerContext, spec: Block) -> nn.Module:
    if isinstance(spec, EdgeBlock):
        return EdgeLayer(context, spec)
    if isinstance(spec, InvertedBlock):
        return InvertedLayer(context, spec)
    return QueryLayer(context, spec)


def _room(x: Picture, spec: EdgeBlock | InvertedBlock) -> Picture:
    """For what a block makes of x."""
    height, width = (reduced(size, spec.stride) for size in x.shape[:2])
    return x.new_empty((height, width, spec.channels))


def _keeps_shape(spec: EdgeBlock | InvertedBlock) -> bool:
    """Whether what a block reads is added to what it makes."""
    return spec.stride == 1 and spec.in_channels == spec.channels


def _added(made: torch.Tensor, rest: Picture | None, rows: slice) -> torch.Tensor:
    return made if rest is None else ops.add_to(rest[rows].flatten(0, 1), made)
