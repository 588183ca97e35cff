"""Vision transformers: patches of an image in, embeddings of tokens out."""

from collections.abc import Generator
from dataclasses import replace
from math import isqrt, prod

import torch
from torch import nn

from pagoda.arch.vision import VisionSpec
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.loading import LoadTarget
from pagoda.layers.norm import Vector
from pagoda.layers.patch_merger import PatchMerger, merger_of
from pagoda.layers.patches import (
    UNIT_FLOPS,
    Grid,
    PatchEmbed,
    Slices,
    VisionBlock,
    by_rows,
    tower_norm,
)


class RowVector(Vector):
    """fp32 [size], which checkpoints hold as a row, or with more dimensions of 1 in front."""

    def __init__(self, context: LayerContext, size: int, dimensions: int = 2):
        super().__init__(context, size)
        self._in_front = (1,) * (dimensions - 1)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (target,) = super().targets(param)
        return (replace(target, shape=(*self._in_front, *target.shape)),)


class VisionTower(nn.Module):
    """Qwen3-VL's; without deepstack also Qwen3.5's, without learned positions also Qwen2-VL's and
    Qwen2.5-VL's, with a norm in front Pixtral's, and with a class token InternVL's and Llama
    4's."""

    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        self.spec = spec
        self._context = context
        self.patches = PatchEmbed(context, spec)
        if spec.num_positions:
            self.positions = VocabTable(context, spec.num_positions, spec.hidden_size)
        if spec.class_token:
            self.class_token = RowVector(context, spec.hidden_size)
            self.class_position = RowVector(context, spec.hidden_size)
        if spec.patch_norm:
            self.patch_norm = tower_norm(context, spec, spec.hidden_size)
        self.blocks = nn.ModuleList(VisionBlock(context, spec) for _ in range(spec.num_layers))
        if spec.final_norm:
            self.norm = tower_norm(context, spec, spec.hidden_size)
        self.merger = merger_of(context, spec, out_size)
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
        if self.spec.class_token:
            return (yield from self._with_class_token(x, rows, columns, unit))
        if self.spec.patch_norm:
            x = self.patch_norm(x)
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

    def _with_class_token(
        self, x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, unit: float
    ) -> Slices:
        """`slices` from a picture's patches on, where a vector stands among them."""
        if len(x) != self.spec.num_positions:
            raise ValueError(
                f"it has {len(x)} patches, and the model knows {self.spec.num_positions} places"
            )
        token = self.class_token.weight + self.class_position.weight
        x = torch.cat((x, token[None].to(x.dtype)))
        if self.spec.patch_norm:
            x = self.patch_norm(x)
        rotation = None
        if self.spec.rope_theta:
            # Columns first, from 1 on; what stands at 0 does not turn.
            places = (torch.nn.functional.pad(at + 1, (0, 1)) for at in (columns, rows))
            rotation = self._rotation(*places)
        picture = torch.tensor([0, len(x)], dtype=torch.int32, device=x.device)
        x, _ = yield from self._through(x, rotation, picture, picture, unit)
        x = x[:-1]
        if self.spec.final_norm:
            x = self.norm(x)
        merged = yield from self.merger.slices(x, unit)
        return merged[None]

    def _through(
        self,
        x: torch.Tensor,
        rotation: torch.Tensor | None,
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
        """fp32 [patches, head_dim]: half of the pairs turn by row, half by column."""
        size = self.spec.head_dim // 2
        exponents = torch.arange(0, size, dtype=torch.float32, device=rows.device) / size
        frequencies = 1.0 / self.spec.rope_theta**exponents
        by_row = frequencies[::2]
        by_column = frequencies[1::2] if self.spec.rope_in_turns else by_row
        angles = torch.cat((rows[:, None] * by_row, columns[:, None] * by_column), dim=1)
        return torch.cat((angles.cos(), angles.sin()), dim=1)


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
