"""SigLIP's vision transformer as Gemma 3 has it: each token is the mean of neighbouring patches."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import ColumnLinear, Shard
from pagoda.layers.loading import LoadTarget
from pagoda.layers.norm import LayerNorm, RMSNorm
from pagoda.layers.patches import UNIT_FLOPS, Grid, PatchEmbed, Slices, VisionBlock, by_rows
from pagoda.quant.base import ShardSource
from pagoda.quant.plain import STORAGES


class LyingLinear(ColumnLinear):
    """A product with a matrix that checkpoints hold as [in_features, out_features]; every rank
    holds it whole."""

    def __init__(self, context: LayerContext, in_features: int, out_features: int):
        super().__init__(context, in_features, (Shard.whole(out_features),))

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (upright,) = super().targets(param)
        rows, columns = upright.shape
        return (LoadTarget((columns, rows), partial(self._load_turned, upright.load)),)

    def _load_turned(self, load: Callable[[ShardSource], None], lying: ShardSource) -> None:
        if lying.storage not in STORAGES:
            raise UnsupportedModelError(
                f"The vision tower's projection is stored as {lying.storage}, which is not "
                "supported; take a file with it in F16, BF16 or F32."
            )
        rows, columns = lying.in_features, lying.out_features

        def turned() -> torch.Tensor:
            elements: torch.Tensor = lying.read().unflatten(1, (rows, -1))
            return elements.transpose(0, 1).flatten(1)

        load(ShardSource(lying.storage, rows, columns, turned))


class SiglipTower(nn.Module):
    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        hidden = spec.hidden_size
        self.spec = spec
        self._context = context
        self.patches = PatchEmbed(context, spec)
        self.positions = VocabTable(context, spec.num_positions, hidden)
        self.blocks = nn.ModuleList(VisionBlock(context, spec) for _ in range(spec.num_layers))
        self.norm = LayerNorm(context, hidden, spec.norm_eps)
        self.token_norm = RMSNorm(context, hidden, spec.norm_eps)
        self.projection = LyingLinear(context, hidden, out_size)

    def slices(self, patches: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [patches, patch_values] of one picture, row by row -> [1, tokens, out_size].

        ValueError for another number of patches than the model has places for.
        """
        device, spec = torch.device(self._context.device), self.spec
        if len(patches) != spec.num_positions:
            raise ValueError(
                f"it has {len(patches)} patches, and the model knows {spec.num_positions} places"
            )
        unit = UNIT_FLOPS[device.type]
        patches = patches.to(device, self._context.dtype)
        cost = 2 * spec.patch_values * spec.hidden_size
        x = yield from by_rows(self.patches, patches, unit / cost)
        x = x + self.positions(torch.arange(len(x), device=device)).to(x.dtype)
        picture = torch.tensor([0, len(x)], dtype=torch.int32, device=device)
        room = x.new_empty((4, *x.shape))
        for block in self.blocks:
            assert isinstance(block, VisionBlock)
            x = yield from block.slices(x, room, None, picture, unit)
        _, rows, columns = grid
        merge = spec.merge
        squares = self.norm(x).view(rows // merge, merge, columns // merge, merge, -1)
        tokens = squares.float().mean((1, 3)).flatten(0, 1).to(x.dtype)
        embeddings: torch.Tensor = self.projection(self.token_norm(tokens))
        return embeddings[None]
