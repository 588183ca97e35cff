"""What mixers share that keep a state: where states lie, and the convolution in front."""

from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch, StateInputs
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import Shard
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector
from pagoda.quant.base import ShardSource


def state_slots(batch: ForwardBatch, layer: int) -> ops.StateSlots:
    """Where a step's requests read and write their states of this layer."""
    where = batch.groups[batch.layer_group[layer]]
    assert isinstance(where, StateInputs)
    return ops.StateSlots(where.read, where.write, batch.query_start, batch.kv_lens, where.drafts)


class CausalConv(WeightedLayer):
    """A convolution of each channel over the last tokens; in fp32 the weight [width, channels] and,
    if there is one, the bias [channels]."""

    def __init__(
        self, context: LayerContext, shards: tuple[Shard, ...], width: int, bias: bool = False
    ):
        super().__init__()
        self._shards = shards
        channels = sum(shard.local_rows for shard in shards)
        self.weight = torch.empty(width, channels, dtype=torch.float32, device=context.device)
        self.bias = torch.empty_like(self.weight[0]) if bias else None

    @property
    def params(self) -> tuple[str, ...]:
        return ("weight",) if self.bias is None else ("weight", "bias")

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        sizes = [shard.local_rows for shard in self._shards]
        if param == "bias":
            assert self.bias is not None  # `params` lists it only then
            return tuple(
                LoadTarget((shard.rows,), partial(load_vector, part), rows=shard.parts)
                for shard, part in zip(self._shards, self.bias.split(sizes), strict=True)
            )
        width = self.weight.shape[0]
        return tuple(
            LoadTarget((shard.rows, width), partial(self._load, part), rows=shard.parts)
            for shard, part in zip(self._shards, self.weight.split(sizes, dim=1), strict=True)
        )

    def _load(self, part: torch.Tensor, source: ShardSource) -> None:
        part.copy_(ops.dequantize(source.read(), source.storage).t())

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, slots: ops.StateSlots, *, silu: bool = True
    ) -> torch.Tensor:
        """[tokens, channels] -> [tokens, channels]; `state` keeps the last inputs."""
        return ops.causal_conv(x, self.weight, state, slots, bias=self.bias, silu=silu)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class HeadVectors(WeightedLayer):
    """Numbers of each head, or of each of its rows: fp32 vectors by their names."""

    def __init__(self, context: LayerContext, shard: Shard, params: tuple[str, ...]):
        super().__init__()
        self._shard = shard
        self._names = params
        for name in params:
            size = (shard.local_rows,)
            setattr(self, name, torch.empty(size, dtype=torch.float32, device=context.device))

    @property
    def params(self) -> tuple[str, ...]:
        return self._names

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        load = partial(load_vector, getattr(self, param))
        return (LoadTarget((self._shard.rows,), load, rows=self._shard.parts),)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.params)


class HeadGates(HeadVectors):
    """How fast each head forgets: fp32 [heads] `rate` (negative) and `bias`; with `skip`, what it
    says of its input at once."""

    rate: torch.Tensor
    bias: torch.Tensor
    skip: torch.Tensor

    def __init__(self, context: LayerContext, heads: Shard, *, skip: bool = False):
        super().__init__(context, heads, ("rate", "bias", "skip") if skip else ("rate", "bias"))
