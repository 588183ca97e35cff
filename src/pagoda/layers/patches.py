"""Patches of an image in a vision transformer: how they are embedded, and the blocks behind."""

from collections.abc import Callable, Generator, Iterator
from functools import partial

import torch
from torch import nn

from pagoda.arch.hearing import AudioSpec
from pagoda.arch.vision import VisionSpec
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, Shard
from pagoda.layers.loading import LoadTarget
from pagoda.layers.norm import LayerNorm, RMSNorm, Vector
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
# modeling_internvl.py: a constant of the architecture, not in config.json.
_QK_EPS = 1e-6
# As many as keep a head's size a multiple of what vectors hold.
_SPARE_FEATURES = 8
# fp16 has it, too, and a head's scale leaves enough of it.
_LOW = -3e4


class PatchEmbed(ColumnLinear):
    """A convolution whose stride is its kernel: a product with each patch's values."""

    def __init__(self, context: LayerContext, spec: VisionSpec):
        whole = Shard.whole(spec.hidden_size)
        super().__init__(context, spec.patch_values, (whole,), bias=spec.patch_bias)
        self._split, self._flat = spec.split_patches, spec.flat_patches
        self._frames = spec.temporal_patch
        self._raw: dict[int, torch.Tensor] = {}
        self._kernel = (spec.patch_size, spec.patch_size)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        (whole,) = super().targets(param)
        if param == "bias" or self._flat:
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
        self.attention_norm = tower_norm(context, spec, hidden)
        bias = spec.block_bias
        self.qkv = whole_linear(
            context, hidden, hidden, hidden, hidden, bias=bias and spec.qkv_bias,
            unbiased=() if key_bias else (1,),
        )  # fmt: skip
        self.has_qk_norm, self.scaled = spec.qk_norm, spec.scaled
        if spec.qk_norm:
            self.q_norm = RMSNorm(context, hidden, _QK_EPS)
            self.k_norm = RMSNorm(context, hidden, _QK_EPS)
        if spec.scaled:
            self.attention_scale = Vector(context, hidden)
            self.scale = Vector(context, hidden)
        self.output = whole_linear(context, hidden, hidden, bias=bias)
        self.mlp_norm = tower_norm(context, spec, hidden)
        if spec.gated:
            self.gate_up = whole_linear(context, hidden, wide, wide, bias=bias)
        else:
            self.up = whole_linear(context, hidden, wide, bias=bias)
        self.down = whole_linear(context, wide, hidden, bias=bias)

    def slices(
        self,
        x: torch.Tensor,
        room: torch.Tensor,
        rotation: torch.Tensor | None,
        runs: torch.Tensor,
        unit: float,
        unseen: torch.Tensor | None = None,
    ) -> Slices:
        """[patches, hidden], in x's own memory; `room` [4, patches, hidden] may hold anything, and
        does afterwards. `rotation` is fp32 [patches, head_dim], cosines then sines (None: nothing
        turns), and `runs` int32 where each run of patches begins that see each other, with the
        end, but for those `unseen` (bool [patches]), which see others alone."""
        count, hidden = x.shape
        # Head by head, as attention reads keys and values.
        qkv = room[:3].view(3, -1, count, self.head_dim)
        attended = room[3]
        places = torch.arange(count, device=x.device)
        for rows in ranges(count, unit / (6 * hidden**2), _FEWEST_ROWS):
            q, k, v = self.qkv(self.attention_norm(x[rows])).chunk(3, dim=-1)
            if self.has_qk_norm:
                q, k = self.q_norm(q.contiguous()), self.k_norm(k.contiguous())
            q, k, v = (whole.unflatten(-1, (-1, self.head_dim)) for whole in (q, k, v))
            if rotation is not None:
                q, k = ops.rotary(q, k, places[rows], rotation)
            for whole, own in zip(qkv, (q, k, v), strict=True):
                whole[:, rows] = own.transpose(0, 1)
            yield
        seen = count // (len(runs) - 1)
        for heads in ranges(qkv.shape[1], unit / (4 * count * seen * self.head_dim)):
            q, k, v = qkv[:, heads].transpose(1, 2)
            if unseen is not None:
                q, k, v = _hiding(unseen, q, k, v)
            one = ops.patch_attention(q, k, v, runs, scale=self.head_dim**-0.5)
            attended.view(count, -1, self.head_dim)[:, heads] = one[..., : self.head_dim]
            yield
        for rows in ranges(count, unit / self.mlp_flops, _FEWEST_ROWS):
            x[rows] = self._behind_attention(attended[rows], x[rows])
            yield
        return x

    def _behind_attention(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The rest of a block; x may be overwritten."""
        output = self.output(attended)
        if self.scaled:
            output = output * self.attention_scale.weight.to(output.dtype)
        x = ops.add_to(output, x)
        normed = self.mlp_norm(x)
        if self.gated:
            inner = ops.activate_and_mul(self.gate_up(normed), self.activation)
        else:
            inner = ops.activate(self.up(normed), self.activation)
        output = self.down(inner)
        if self.scaled:
            output = output * self.scale.weight.to(output.dtype)
        return ops.add_to(output, x)


def _hiding(unseen: torch.Tensor, *qkv: torch.Tensor) -> list[torch.Tensor]:
    """q, k and v [patches, heads, dim] with a few more features, by one of which each query scores
    keys of unseen patches so low that they count for nothing."""
    q, k, v = (torch.nn.functional.pad(x, (0, _SPARE_FEATURES)) for x in qkv)
    q[..., -1] = 1
    k[unseen, :, -1] = _LOW
    return [q, k, v]


def by_rows(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rows: float
) -> Slices:
    """`function` of x [rows, size], so many rows at a time."""
    parts = []
    for some in ranges(len(x), rows, _FEWEST_ROWS):
        parts.append(function(x[some]))
        yield
    return torch.cat(parts)


def ranges(count: int, size: float, least: int = 1) -> Iterator[slice]:
    """`count` things in ranges of `size`, but of `least` at the least."""
    step = max(least, int(size))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def tower_norm(
    context: LayerContext, spec: VisionSpec | AudioSpec, size: int
) -> RMSNorm | LayerNorm:
    """A norm of the kind that the tower has."""
    kind = RMSNorm if spec.rms_norms else LayerNorm
    return kind(context, size, spec.norm_eps)


def whole_linear(
    context: LayerContext,
    in_features: int,
    *out_features: int,
    bias: bool = True,
    unbiased: tuple[int, ...] = (),
) -> ColumnLinear:
    """A linear layer that every rank holds whole."""
    shards = tuple(map(Shard.whole, out_features))
    return ColumnLinear(context, in_features, shards, bias=bias, unbiased=unbiased)
