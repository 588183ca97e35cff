"""SigLIP's vision transformer as Phi-4-multimodal has it: tiles of a picture, and all of it."""

from itertools import accumulate
from math import isqrt

import torch
from torch import nn

from pagoda.arch.vision import VisionSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.patches import (
    UNIT_FLOPS,
    Grid,
    PatchEmbed,
    Slices,
    VisionBlock,
    by_rows,
    whole_linear,
)
from pagoda.layers.vision import RowVector


class TiledTower(nn.Module):
    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        hidden = spec.hidden_size
        self.spec = spec
        self._context = context
        self.patches = PatchEmbed(context, spec)
        self.positions = VocabTable(context, spec.num_positions, hidden)
        self.blocks = nn.ModuleList(VisionBlock(context, spec) for _ in range(spec.num_layers))
        self.row_end = RowVector(context, hidden, 4)
        self.whole_begin = RowVector(context, hidden, 3)
        self.up = whole_linear(context, hidden, out_size)
        self.down = whole_linear(context, out_size, out_size)
        self.flops = 2 * out_size * (hidden + out_size)

    def slices(self, patches: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [patches, patch_values] of one picture -> [1, tokens, out_size].

        First come the patches of the whole, in one tile, and then those of the tiles, each in the
        order of reading. `grid` has as many rows and columns as all tiles together; to odd ones
        another belongs that nothing sees.
        """
        device, spec = torch.device(self._context.device), self.spec
        side = isqrt(spec.num_positions)
        heights, widths = (
            [min(side, count - begin) for begin in range(0, count, side)] for count in grid[1:]
        )
        tiles = [(side, side), *((rows, columns) for rows in heights for columns in widths)]
        places, unseen = (
            torch.cat(parts).to(device)
            for parts in zip(*(_places(*tile, side) for tile in tiles), strict=True)
        )
        unit = UNIT_FLOPS[device.type]
        patches = patches.to(device, self._context.dtype)
        cost = 2 * spec.patch_values * spec.hidden_size
        x = yield from by_rows(self.patches, patches, unit / cost)
        x = x + self.positions(places).to(x.dtype)
        sizes = [_even(rows) * _even(columns) for rows, columns in tiles]
        runs = torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device)
        room = x.new_empty((4, *x.shape))
        skipped = unseen if bool(unseen.any()) else None
        for block in self.blocks:
            assert isinstance(block, VisionBlock)
            x = yield from block.slices(x, room, None, runs, unit, skipped)
        whole, *parts = map(_means, x.split(sizes), tiles)
        across = len(widths)
        lines = [torch.cat(parts[at : at + across], 1) for at in range(0, len(parts), across)]
        begin = self.whole_begin.weight.to(x.dtype)[None]
        tokens = torch.cat((self._in_rows(torch.cat(lines)), begin, self._in_rows(whole)))
        embeddings = yield from by_rows(self._projected, tokens, unit / self.flops)
        return embeddings[None]

    def _in_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """[rows, columns, hidden] -> [rows * (columns + 1), hidden]: with an end to each row."""
        end = self.row_end.weight.to(tokens.dtype).expand(len(tokens), 1, -1)
        return torch.cat((tokens, end), 1).flatten(0, 1)

    def _projected(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(ops.activate(self.up(tokens), "gelu"))
        return out


def _even(count: int) -> int:
    return count + count % 2


def _places(rows: int, columns: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a tile's patches lie in the table of positions, int64 [patches], and which of them are
    unseen, bool [patches]. A tile lies over the whole table, however many patches it has."""
    down, across = (_stretched(count, side) for count in (rows, columns))
    unseen = (down < 0)[:, None] | (across < 0)
    places = down[:, None] * side + across
    return places.masked_fill(unseen, 0).flatten(), unseen.flatten()


def _stretched(count: int, side: int) -> torch.Tensor:
    """Where `count` places lie among `side`, int64, with a -1 behind an odd number of them.

    In fp32 and by these very sums, as the model was trained: others round to other places.
    """
    begins = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    places = torch.bucketize(begins.clamp(max=1.0 - 1e-6), bounds, right=True)
    return torch.nn.functional.pad(places, (0, count % 2), value=-1)


def _means(x: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """A tile's patches [patches, hidden] -> tokens [rows / 2, columns / 2, hidden]."""
    rows, columns = (_even(count) // 2 for count in tile)
    means: torch.Tensor = x.view(rows, 2, columns, 2, -1).float().mean((1, 3)).to(x.dtype)
    return means
