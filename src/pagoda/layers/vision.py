"""Vision transformers: patches of an image in, embeddings of tokens out."""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from math import isqrt, prod

import torch
from torch import nn

from pagoda.arch.hearing import AudioSpec
from pagoda.arch.spec import VisionSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import ColumnLinear, Shard
from pagoda.layers.loading import LoadTarget
from pagoda.layers.norm import LayerNorm, RMSNorm
from pagoda.quant.base import ShardSource

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches."""
Slices = Generator[None, None, torch.Tensor]
"""Work in slices that take a few milliseconds each, so that others need not wait for all of it; its
return value is the result."""
UNIT_FLOPS = {"cpu": 2e9, "cuda": 2e11}
"""Operations of a slice: 10 to 40 ms on a few cores of a CPU, 1 ms on a GPU that does 200 TFLOPS.
With half of them Qwen3-VL-2B's tower in F16 takes 17 % longer on two cores: each slice reads all
weights of what it computes."""
_FEWEST_ROWS = 16


class PatchEmbed(ColumnLinear):
    """A convolution whose stride is its kernel: a product with each patch's values."""

    def __init__(self, context: LayerContext, spec: VisionSpec):
        whole = Shard.whole(spec.hidden_size)
        super().__init__(context, spec.patch_values, (whole,), bias=spec.patch_bias)
        self._split = spec.split_patches
        self._frames = spec.temporal_patch
        self._raw: dict[int, torch.Tensor] = {}
        self._kernel = (spec.patch_size, spec.patch_size)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (whole,) = super().targets(param)
        if param == "bias":
            return (whole,)
        rows = whole.shape[0]
        if not self._split:
            return (LoadTarget((rows, 3, self._frames, *self._kernel), whole.load),)
        return tuple(
            LoadTarget((rows, 3, *self._kernel), partial(self._load_frame, frame, whole.load))
            for frame in range(self._frames)
        )

    def create(self, storages: tuple[str, ...]) -> None:
        super().create(storages[:1])

    def _load_frame(
        self, frame: int, load: Callable[[ShardSource], None], source: ShardSource
    ) -> None:
        """Keep a frame's weights until all are there, and then load them side by side."""
        self._raw[frame] = source.read()
        if len(self._raw) < self._frames:
            return
        parts = [self._raw[at].unflatten(1, (3, -1)) for at in range(self._frames)]
        whole = torch.stack(parts, dim=2).flatten(1)
        self._raw.clear()
        width = source.in_features * self._frames
        load(ShardSource(source.storage, source.out_features, width, lambda: whole))


class VisionBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); every rank holds it whole."""

    def __init__(
        self, context: LayerContext, spec: VisionSpec | AudioSpec, *, key_bias: bool = True
    ):
        super().__init__()
        hidden, wide = spec.hidden_size, spec.intermediate_size
        self.head_dim = spec.head_dim
        self.activation = spec.activation
        self.gated = spec.gated
        self.mlp_flops = 2 * hidden**2 + (6 if spec.gated else 4) * hidden * wide
        self.attention_norm = _norm(context, spec, hidden)
        unbiased = () if key_bias else (1,)
        self.qkv = _whole(context, hidden, hidden, hidden, hidden, unbiased=unbiased)
        self.output = _whole(context, hidden, hidden)
        self.mlp_norm = _norm(context, spec, hidden)
        if spec.gated:
            self.gate_up = _whole(context, hidden, wide, wide)
        else:
            self.up = _whole(context, hidden, wide)
        self.down = _whole(context, wide, hidden)

    def slices(
        self,
        x: torch.Tensor,
        room: torch.Tensor,
        rotation: torch.Tensor | None,
        runs: torch.Tensor,
        unit: float,
    ) -> Slices:
        """[patches, hidden], in x's own memory; `room` [4, patches, hidden] may hold anything, and
        does afterwards. `rotation` is fp32 [patches, head_dim], cosines then sines (None: nothing
        turns), and `runs` int32 where each run of patches begins that see each other, with the
        end."""
        count, hidden = x.shape
        # Head by head, as attention reads keys and values.
        qkv = room[:3].view(3, -1, count, self.head_dim)
        attended = room[3]
        places = torch.arange(count, device=x.device)
        for rows in _ranges(count, unit / (6 * hidden**2), _FEWEST_ROWS):
            part = self.qkv(self.attention_norm(x[rows])).unflatten(-1, (3, -1, self.head_dim))
            q, k, v = part.unbind(1)
            if rotation is not None:
                q, k = ops.rotary(q, k, places[rows], rotation)
            for whole, own in zip(qkv, (q, k, v), strict=True):
                whole[:, rows] = own.transpose(0, 1)
            yield
        seen = count // (len(runs) - 1)
        for heads in _ranges(qkv.shape[1], unit / (4 * count * seen * self.head_dim)):
            q, k, v = qkv[:, heads].transpose(1, 2)
            one = ops.patch_attention(q, k, v, runs, scale=self.head_dim**-0.5)
            attended.view(count, -1, self.head_dim)[:, heads] = one
            yield
        for rows in _ranges(count, unit / self.mlp_flops, _FEWEST_ROWS):
            x[rows] = self._behind_attention(attended[rows], x[rows])
            yield
        return x

    def _behind_attention(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The rest of a block; x may be overwritten."""
        x = ops.add_to(self.output(attended), x)
        normed = self.mlp_norm(x)
        if self.gated:
            inner = ops.activate_and_mul(self.gate_up(normed), self.activation)
        else:
            inner = ops.activate(self.up(normed), self.activation)
        return ops.add_to(self.down(inner), x)


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
        self.norm = _norm(context, spec, size)
        self.up = _whole(context, self.width, self.width)
        self.down = _whole(context, self.width, out_size)

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


class VisionTower(nn.Module):
    """Qwen3-VL's; without deepstack also Qwen3.5's, without learned positions also Qwen2-VL's and
    Qwen2.5-VL's."""

    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        self.spec = spec
        self._context = context
        self.patches = PatchEmbed(context, spec)
        if spec.num_positions:
            self.positions = VocabTable(context, spec.num_positions, spec.hidden_size)
        self.blocks = nn.ModuleList(VisionBlock(context, spec) for _ in range(spec.num_layers))
        self.merger = PatchMerger(context, spec, out_size)
        self.deepstack = nn.ModuleList(
            PatchMerger(context, spec, out_size, norm_merged=True) for _ in spec.deepstack
        )

    def slices(self, patches: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [patches, patch_values] of one image or video, `merge * merge` neighbours in a row
        -> [1 + deepstack, tokens, out_size]: the embeddings, and what is added later."""
        device = torch.device(self._context.device)
        unit = UNIT_FLOPS[device.type]
        rows, columns = (at.to(device) for at in _places(grid, self.spec.merge))
        patches = patches.to(device, self._context.dtype)
        cost = 2 * self.spec.patch_values * self.spec.hidden_size
        x = yield from by_rows(self.patches, patches, unit / cost)
        if self.spec.num_positions:
            x = x + self._interpolated(rows, columns, grid).to(x.dtype)
        rotation = self._rotation(rows, columns)
        size = grid[1] * grid[2]
        frames = torch.arange(0, (grid[0] + 1) * size, size, dtype=torch.int32, device=device)
        if self.spec.window is None:
            x, deeper = yield from self._through(x, rotation, frames, frames, unit)
            merged = yield from self.merger.slices(x, unit)
            return torch.stack([merged, *deeper])
        # Squares lie one behind the other meanwhile, whole tokens.
        order, windows = _windows(grid, self.spec.merge, self.spec.window)
        order, windows = order.to(device), windows.to(device)
        x, rotation = (_tokens_in(part, order, self.spec.merge) for part in (x, rotation))
        x, _ = yield from self._through(x, rotation, windows, frames, unit)
        merged = yield from self.merger.slices(x, unit)
        return torch.empty_like(merged).index_copy_(0, order, merged)[None]

    def _through(
        self,
        x: torch.Tensor,
        rotation: torch.Tensor,
        runs: torch.Tensor,
        frames: torch.Tensor,
        unit: float,
    ) -> Generator[None, None, tuple[torch.Tensor, list[torch.Tensor]]]:
        """x [patches, hidden] behind all blocks, and what deepstack makes of it on the way; in most
        layers patches see their run (`VisionBlock.slices`), in full ones their frame."""
        deeper, room = [], x.new_empty((4, *x.shape))
        for index, block in enumerate(self.blocks):
            assert isinstance(block, VisionBlock)
            seen = frames if index in self.spec.full_layers else runs
            x = yield from block.slices(x, room, rotation, seen, unit)
            if index in self.spec.deepstack:
                merger = self.deepstack[self.spec.deepstack.index(index)]
                assert isinstance(merger, PatchMerger)
                deeper.append((yield from merger.slices(x, unit)))
        return x, deeper

    def _interpolated(self, rows: torch.Tensor, columns: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Learned positions, between which a grid of another size is interpolated (bilinear,
        corners on corners)."""
        side = isqrt(self.spec.num_positions)
        parts = [
            (row_share * column_share)[:, None] * self.positions(row * side + column)
            for row, row_share in _neighbours(rows, grid[1], side)
            for column, column_share in _neighbours(columns, grid[2], side)
        ]
        return torch.stack(parts).sum(0)

    def _rotation(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """fp32 [patches, head_dim]: half of the frequencies turn by row, half by column."""
        size = self.spec.head_dim // 2
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=rows.device) / size
        frequencies = 1.0 / self.spec.rope_theta**exponents
        angles = torch.cat((rows[:, None] * frequencies, columns[:, None] * frequencies), dim=1)
        return torch.cat((angles.cos(), angles.sin()), dim=1)


def by_rows(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rows: float
) -> Slices:
    """`function` of x [rows, size], so many rows at a time."""
    parts = []
    for some in _ranges(len(x), rows, _FEWEST_ROWS):
        parts.append(function(x[some]))
        yield
    return torch.cat(parts)


def _ranges(count: int, size: float, least: int = 1) -> Iterator[slice]:
    """`count` things in ranges of `size`, but of `least` at the least."""
    step = max(least, int(size))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def _places(grid: Grid, merge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each patch; patches of one token follow each other."""
    frames, rows, columns = grid
    at = torch.arange(prod(grid[1:])).view(rows // merge, merge, columns // merge, merge)
    # From the order of reading to that of tokens: the same cut of the raster, transposed.
    order = at.transpose(1, 2).flatten().repeat(frames)
    return torch.div(order, columns, rounding_mode="floor"), order % columns


def _neighbours(
    places: torch.Tensor, size: int, side: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The two rows of a table of `side` between which each place of `size` lies, and how much each
    counts."""
    exact = places.float() * (side - 1) / max(size - 1, 1)
    low = exact.floor().long()
    share = exact - low
    return [(low, 1 - share), ((low + 1).clamp(max=side - 1), share)]


def _windows(grid: Grid, merge: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (int64, by their places in the frames) square by square, `side` tokens each way, those
    at the right and at the bottom smaller; and the patch (int32) with which each square begins,
    with the end."""
    frames, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    frame, row, column = torch.meshgrid(
        torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij"
    )
    down, across = -(-rows // side), -(-columns // side)
    square = ((frame * down + row // side) * across + column // side).flatten()
    sizes = torch.bincount(square) * merge**2
    begins = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    return torch.argsort(square, stable=True), begins


def _tokens_in(x: torch.Tensor, order: torch.Tensor, merge: int) -> torch.Tensor:
    """x [patches, size] with its tokens, `merge * merge` patches each, in another order."""
    moved: torch.Tensor = x.unflatten(0, (-1, merge**2))[order].flatten(0, 1)
    return moved


def _norm(context: LayerContext, spec: VisionSpec | AudioSpec, size: int) -> RMSNorm | LayerNorm:
    kind = RMSNorm if spec.rms_norms else LayerNorm
    return kind(context, size, spec.norm_eps)


def _whole(
    context: LayerContext, in_features: int, *out_features: int, unbiased: tuple[int, ...] = ()
) -> ColumnLinear:
    shards = tuple(map(Shard.whole, out_features))
    return ColumnLinear(context, in_features, shards, bias=True, unbiased=unbiased)
