"""Mixtures of experts: a router sends each token to a few of many small feed-forward layers."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from pagoda.arch.spec import LayerSpec, MlpSpec, MoeSpec
from pagoda.kernels import ops
from pagoda.layers.adapters import AdapterRoom, beside_experts
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ExactLinear, Shard
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector
from pagoda.layers.mlp import mlp
from pagoda.layers.norm import Vector
from pagoda.quant.base import ShardSource
from pagoda.quant.experts import ExpertFormat, ExpertSizes, PackedExpertFormat, expert_format
from pagoda.quant.host import staging_bytes

# Pairs of a token and an expert, for each expert: of more nearly all experts are met (86% of them
# if routers choose evenly), and some are read several times.
_MET_BY_FEW = 2

Result = TypeVar("Result")


class Router(ExactLinear):
    """Logits of all experts and, if that has one, of the shared expert's gate, on every rank."""

    def __init__(self, context: LayerContext, spec: MoeSpec, hidden_size: int):
        gated = spec.shared is not None and spec.shared.gated
        rows = (spec.num_experts, 1) if gated else (spec.num_experts,)
        shards = tuple(Shard.whole(count) for count in rows)
        super().__init__(context, hidden_size, shards, spec.bias)


class ExpertMatrices(WeightedLayer):
    """`parts` matrices [rows, in_features] of each expert that this rank holds; a rank holds
    experts whole."""

    format: ExpertFormat
    keep: Callable[[PackedExpertFormat], None] | None = None
    """Where they go from `finalize` on, if that is a file."""
    adapters: AdapterRoom | None = None
    """Where adapters add to the products."""

    def __init__(self, context: LayerContext, held: slice, sizes: ExpertSizes, bias: bool):
        super().__init__()
        self._context = context
        self._held = held
        self.sizes = sizes
        self.bias: torch.Tensor | None = None
        if bias:
            shape = (sizes.count, sizes.parts * sizes.rows)
            self.bias = torch.empty(shape, dtype=context.dtype, device=context.device)

    @property
    def params(self) -> tuple[str, ...]:
        return ("weight",) if self.bias is None else ("weight", "bias")

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        count, parts, rows, columns = self.sizes
        if param == "bias":
            assert self.bias is not None  # `params` lists it only then
            vectors = self.bias.view(count * parts, rows).unbind()
            shape: tuple[int, ...] = (rows,)
            loads = [partial(load_vector, vector) for vector in vectors]
        else:
            shape = (rows, columns)
            loads = [partial(self._load, shard) for shard in range(count * parts)]
        return tuple(
            LoadTarget(shape, load, expert=self._held.start + shard // parts)
            for shard, load in enumerate(loads)
        )

    def create(self, storages: tuple[str, ...]) -> None:
        context = self._context
        self.format = expert_format(
            self.sizes, storages, context.dtype, context.device, packed=context.packed
        )

    def _load(self, shard: int, source: ShardSource) -> None:
        self.format.load(shard, source)

    def finalize(self) -> None:
        self.format.finalize()
        if self.host is not None:
            self.format = self.host.keep(self.format)
        if self.keep is not None:
            assert isinstance(self.format, PackedExpertFormat)
            self.keep(self.format)

    def make_room(self, num_slots: int, max_rank: int, dtype: torch.dtype) -> None:
        """As `Linear.make_room`."""
        context, (count, parts, rows, columns) = self._context, self.sizes
        self.adapters = AdapterRoom(
            context.adapters, num_slots, max_rank, columns, (rows,) * parts, dtype, context.device,
            count,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return self.format.nbytes + (0 if self.bias is None else self.bias.nbytes)


class MixtureOfExperts(nn.Module):
    """The weighted sum of what the chosen experts make of each token (arXiv 1701.06538)."""

    def __init__(self, context: LayerContext, spec: MoeSpec, hidden_size: int):
        super().__init__()
        self.spec = spec
        self._parallel = context.parallel
        self._adapters = context.adapters
        self.held = held = context.parallel.share(spec.num_experts, "experts")
        count, size = held.stop - held.start, spec.intermediate_size
        self.router = Router(context, spec, hidden_size)
        gate_up = ExpertSizes(count, 2 if spec.gated else 1, size, hidden_size)
        self.gate_up = ExpertMatrices(context, held, gate_up, spec.bias)
        down = ExpertSizes(count, 1, hidden_size, size)
        self.down = ExpertMatrices(context, held, down, spec.bias)
        self.scales = Vector(context, spec.num_experts) if spec.expert_scales else None
        self._scale = None
        if spec.scale != 1.0:
            self._scale = torch.full((spec.num_experts,), spec.scale, device=context.device)
        self.correction = Vector(context, spec.num_experts) if spec.corrected else None
        self._uncorrected = None
        if spec.groups > 1 and not spec.corrected:
            self._uncorrected = torch.zeros(spec.num_experts, device=context.device)
        clamped = spec.clamped
        if clamped is None:
            self._gating = ops.Gating(activation=_gates(spec))
        else:
            self._gating = ops.Gating(clamped.alpha, clamped.limit)
        if spec.shared is not None:
            # A layer of its own: checkpoints store it with other bits than the chosen ones.
            size = spec.shared.intermediate_size
            shared = MlpSpec(size, spec.activation, gated=spec.gated)
            self.shared = mlp(context, shared, hidden_size)

    def forward(self, x: torch.Tensor, routed_by: torch.Tensor | None = None) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; the router reads `routed_by`, or else x."""
        spec = self.spec
        logits = self.router(x if routed_by is None else routed_by)
        chosen, gate = logits[:, : spec.num_experts], logits[:, spec.num_experts :]
        scales = self._scale if self.scales is None else self.scales.weight
        correction = None
        added = self._uncorrected if self.correction is None else self.correction.weight
        if added is not None:
            correction = ops.Correction(added, spec.groups, spec.top_groups, spec.group_best)
        routed = ops.route(chosen, spec.top_k, spec.scoring, spec.renormalize, scales, correction)
        adapters = beside_experts(self._adapters, self.gate_up.adapters, self.down.adapters)
        form = partial(ops.mix_experts, adapters=adapters)
        if spec.shared is not None:
            # Its part is added before the ranks' parts add up: one exchange for both.
            shared = ops.Beside(self.shared.partial(x), gate if spec.shared.gated else None)
            form = partial(form, beside=shared)
        return self._parallel.summed(self.mix_by(form, x, routed))

    def mix_by(self, form: Callable[..., Result], x: torch.Tensor, routed: ops.Routed) -> Result:
        """What a form of `ops.mix_experts` makes of x [tokens, hidden], of where its tokens go,
        and of the experts."""
        return form(
            x,
            routed,
            *self._operands(routed.ids.numel()),
            self._gating,
            self.held.start,
            weighs_inputs=self.spec.weighs_inputs,
        )

    @property
    def staging_bytes(self) -> int:
        if self.down.host is None:
            return 0
        return staging_bytes(self.gate_up.format, self.down.format)

    def _operands(self, assignments: int) -> "list[ops.PlainExperts | ops.PackedExperts]":
        """What `ops.mix_experts` takes of both, for so many pairs of a token and an expert. In the
        host's memory the kernels of a few read the experts that are met, and no others."""
        formats = [self.gate_up.format, self.down.format]
        host = self.down.host  # where those of gate_up are, too
        if host is not None and assignments > _MET_BY_FEW * self.spec.num_experts:
            formats = host.fetched(*formats)
        return [
            format.operand(part.bias)
            for format, part in zip(formats, (self.gate_up, self.down), strict=True)
        ]


def _gates(spec: MoeSpec) -> str:
    """The activation of what gates: `up` itself, where there is no other matrix."""
    if spec.gated:
        return spec.activation
    assert spec.activation == "relu2", spec.activation  # of what is known without gates
    return "relu"


def feed_forward(context: LayerContext, layer: LayerSpec, hidden_size: int) -> nn.Module:
    """The layer's experts, or its mlp where it has none."""
    if layer.experts is not None:
        return MixtureOfExperts(context, layer.experts, hidden_size)
    assert layer.mlp is not None
    return mlp(context, layer.mlp, hidden_size)
