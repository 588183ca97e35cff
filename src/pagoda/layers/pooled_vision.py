"""Gemma 4's vision transformer: each token is the mean of neighbouring patches."""

from dataclasses import replace

import torch
from torch import nn

from pagoda.arch.vision import VisionSpec
from pagoda.kernels import ops
from pagoda.layers.clipped import ClippedLinears
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, Shard, replicated
from pagoda.layers.loading import LoadTarget, WeightedLayer
from pagoda.layers.norm import RMSNorm, Vector
from pagoda.layers.patches import Grid, Slices
from pagoda.quant.base import ShardSource
from pagoda.quant.plain import STORAGES


class AxisTables(WeightedLayer):
    """[2, positions, size]: a learned vector for each column and for each row of patches."""

    params = ("weight",)
    weight: torch.Tensor

    def __init__(self, context: LayerContext, num_positions: int, size: int):
        super().__init__()
        self._context = context
        self._shape = (2, num_positions, size)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return (LoadTarget(self._shape, self._load),)

    def create(self, storages: tuple[str, ...]) -> None:
        dtype = self._context.dtype
        if self._context.packed:  # few rows are read, and converted then
            dtype = STORAGES.get(storages[0], dtype)
        self.weight = torch.empty(self._shape, dtype=dtype, device=self._context.device)

    def _load(self, source: ShardSource) -> None:
        read = ops.dequantize(source.read(), source.storage, self.weight.dtype)
        self.weight.copy_(read.view(self._shape))

    def forward(self, columns: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """int64 [patches] each -> [patches, size], in the dtype of activations."""
        dtype = self._context.dtype
        return self.weight[0, columns].to(dtype) + self.weight[1, rows].to(dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class Patches(ColumnLinear):
    """A product with each patch's values."""

    def __init__(self, context: LayerContext, spec: VisionSpec):
        super().__init__(context, spec.patch_values, (Shard.whole(spec.hidden_size),))
        self._size = spec.patch_size
        self._color_planes = spec.color_planes

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (target,) = super().targets(param)
        if self._color_planes:
            target = replace(target, shape=(target.shape[0], 3, self._size, self._size))
        return (target,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[patches, values pixel by pixel] -> [patches, hidden]."""
        if self._color_planes:
            x = x.unflatten(1, (-1, 3)).transpose(1, 2).flatten(1)
        return super().forward(x)


class PooledBlock(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))); every rank holds it whole."""

    def __init__(self, context: LayerContext, spec: VisionSpec):
        super().__init__()
        hidden, eps, self.head_dim = spec.hidden_size, spec.norm_eps, spec.head_dim
        self.activation = spec.activation
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.qkv = _linear(context, spec, hidden, (hidden,) * 3)
        self.q_norm = RMSNorm(context, self.head_dim, eps)
        self.k_norm = RMSNorm(context, self.head_dim, eps)
        self.output = _linear(context, spec, hidden, (hidden,))
        self.attention_result_norm = RMSNorm(context, hidden, eps)
        self.mlp_norm = RMSNorm(context, hidden, eps)
        wide = spec.intermediate_size
        self.gate_up = _linear(context, spec, hidden, (wide,) * 2)
        self.down = _linear(context, spec, wide, (hidden,))
        self.result_norm = RMSNorm(context, hidden, eps)

    def forward(
        self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], picture: torch.Tensor
    ) -> torch.Tensor:
        """[patches, hidden]; `turns` are fp32 [patches, head_dim / 2], cosines then sines, of
        columns and of rows, and `picture` int32 [2] where it begins and ends."""
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        ones = torch.ones_like(self.q_norm.weight)
        q, k, v = (
            ops.rms_norm(part.reshape(-1, self.head_dim), weight, self.q_norm.eps)
            .view(len(x), -1, self.head_dim)
            for part, weight in ((q, self.q_norm.weight), (k, self.k_norm.weight), (v, ones))
        )  # fmt: skip
        q, k = _turned(q, k, turns)
        attended = ops.patch_attention(q, k, v, picture, scale=1.0)
        x = x + self.attention_result_norm(self.output(attended.flatten(1)))
        inner = ops.activate_and_mul(self.gate_up(self.mlp_norm(x)), self.activation)
        out: torch.Tensor = x + self.result_norm(self.down(inner))
        return out


def _linear(
    context: LayerContext, spec: VisionSpec, columns: int, sizes: tuple[int, ...]
) -> ColumnLinear | ClippedLinears:
    if spec.clipped:
        return ClippedLinears(context, columns, sizes)
    return ColumnLinear(context, columns, tuple(map(Shard.whole, sizes)))


class PooledVisionTower(nn.Module):
    def __init__(self, context: LayerContext, spec: VisionSpec, out_size: int):
        super().__init__()
        hidden = spec.hidden_size
        self.spec = spec
        self._context = context
        self.patches = Patches(context, spec)
        self.positions = AxisTables(context, spec.num_positions, hidden)
        self.blocks = nn.ModuleList(PooledBlock(context, spec) for _ in range(spec.num_layers))
        if spec.standardized:
            self.token_mean = Vector(context, hidden)
            self.token_scale = Vector(context, hidden)
        self.projection = replicated(context, hidden, out_size)

    def slices(self, patches: torch.Tensor, grid: Grid) -> Slices:
        """fp32 [patches, patch_values] of one picture, row by row -> [1, tokens, out_size], a block
        at a time.

        ValueError for more rows or columns than the model has positions for.
        """
        device, dtype = self._context.device, self._context.dtype
        _, num_rows, num_columns = grid
        if max(num_rows, num_columns) > self.spec.num_positions:
            raise ValueError(
                f"it has {num_rows} x {num_columns} patches, and the model knows places up to "
                f"{self.spec.num_positions}"
            )
        at = torch.arange(num_rows * num_columns, device=device)
        rows, columns = torch.div(at, num_columns, rounding_mode="floor"), at % num_columns
        x = self.patches((2 * patches.to(device) - 1).to(dtype)) + self.positions(columns, rows)
        turns = self._turns(columns), self._turns(rows)
        picture = torch.tensor([0, len(x)], dtype=torch.int32, device=device)
        for block in self.blocks:
            x = block(x, turns, picture)
            yield
        tokens = self._pooled(x, num_rows, num_columns)
        ones = torch.ones(self.spec.hidden_size, device=device)
        normed = ops.rms_norm(tokens.to(dtype), ones, self.spec.norm_eps)
        embeddings: torch.Tensor = self.projection(normed)
        return embeddings[None]

    def _pooled(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """fp32 [tokens, hidden]; in fp16 the factor could overflow."""
        merge, hidden = self.spec.merge, self.spec.hidden_size
        squares = x.float().view(rows // merge, merge, columns // merge, merge, hidden)
        tokens: torch.Tensor = squares.mean((1, 3)).flatten(0, 1) * hidden**0.5
        if self.spec.standardized:
            tokens = (tokens - self.token_mean.weight) * self.token_scale.weight
        return tokens

    def _turns(self, places: torch.Tensor) -> torch.Tensor:
        size = self.spec.head_dim // 2
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=places.device) / size
        angles = places[:, None] / self.spec.rope_theta**exponents
        return torch.cat((angles.cos(), angles.sin()), dim=1)


def _turned(
    q: torch.Tensor, k: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of each head turns by the patch's column, the second by its row."""
    index = torch.arange(len(q), device=q.device)
    halves = zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), turns, strict=True)
    turned = [ops.rotary(q_half, k_half, index, turn) for q_half, k_half, turn in halves]
    return torch.cat([q for q, _ in turned], dim=-1), torch.cat([k for _, k in turned], dim=-1)
