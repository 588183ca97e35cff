"""A gated delta net (arXiv 2412.06464): attention's place taken by a state of constant size."""

import torch
from torch import nn

from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard
from pagoda.layers.loading import Slices
from pagoda.layers.norm import RMSNorm
from pagoda.layers.recurrent import CausalConv, HeadGates, state_slots


class DeltaNet(nn.Module):
    """Short convolutions of q, k and v, the gated delta rule, and a gated norm of each head."""

    def __init__(
        self, context: LayerContext, spec: DeltaNetSpec, hidden_size: int, eps: float, layer: int
    ):
        super().__init__()
        self.spec = spec
        self.layer = layer
        self._eps = eps
        key_heads = context.parallel.share(spec.num_key_heads, "key heads of delta nets")
        value_heads = _value_heads(spec, key_heads)
        keys = Shard.of_heads(spec.num_key_heads, (key_heads,), spec.key_head_dim)
        values = Shard.of_heads(spec.num_value_heads, value_heads, spec.value_head_dim)
        heads = Shard.of_heads(spec.num_value_heads, value_heads, 1)
        # q, k, v, the output gate, the writing strength and the decay.
        shards = (keys, keys, values, values, heads, heads)
        self.input = ColumnLinear(context, hidden_size, shards)
        self.conv = CausalConv(context, (keys, keys, values), spec.conv_width)
        self.gates = HeadGates(context, heads)
        self.norm = RMSNorm(context, spec.value_head_dim, eps)
        self.output = RowLinear(context, values.rows, hidden_size, columns=values.parts)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; moves the requests' states on by their tokens."""
        conv_state, state = batch.kv_caches[self.layer]
        slots = state_slots(batch, self.layer)
        channels, values, heads = self.conv.weight.shape[1], *self.input.sizes[3:5]
        mixed, gate, strength, decay = self.input(hidden_states).split(
            [channels, values, heads, heads], dim=1
        )
        out = ops.gated_delta_rule(
            self.conv(mixed, conv_state, slots),
            strength,
            ops.Decay(decay, self.gates.rate, self.gates.bias),
            state,
            slots,
            tiled=self.spec.tiled,
        )
        normed = ops.gated_rms_norm(out, gate, self.norm.weight, self._eps)
        result: torch.Tensor = self.output(normed)
        return result


def _value_heads(spec: DeltaNetSpec, key_heads: slice) -> Slices:
    """Those that go with these key heads."""
    count, shared = spec.num_key_heads, spec.num_value_heads // spec.num_key_heads
    if not spec.tiled:
        return (slice(key_heads.start * shared, key_heads.stop * shared),)
    return tuple(
        slice(tile * count + key_heads.start, tile * count + key_heads.stop)
        for tile in range(shared)
    )
