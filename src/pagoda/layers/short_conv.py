"""LFM2's gated short convolution: attention's place taken by the last few tokens."""

import torch
from torch import nn

from pagoda.arch.recurrent import ShortConvSpec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard
from pagoda.layers.recurrent import CausalConv, state_slots


class ShortConv(nn.Module):
    """output(c * conv(b * x)) for b, c and x of one linear layer."""

    def __init__(
        self, context: LayerContext, spec: ShortConvSpec, hidden_size: int, eps: float, layer: int
    ):
        """`eps` is not needed here: nothing is normalized."""
        super().__init__()
        self.layer = layer
        channels = context.parallel.share(spec.channels, spec.splits["channels"])
        shard = Shard(spec.channels, (channels,))
        self.input = ColumnLinear(context, hidden_size, (shard,) * 3, spec.bias)
        self.conv = CausalConv(context, (shard,), spec.conv_width, spec.bias)
        self.output = RowLinear(context, spec.channels, hidden_size, spec.bias, columns=shard.parts)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; moves the requests' states on by their tokens."""
        (state,) = batch.kv_caches[self.layer]
        slots = state_slots(batch, self.layer)
        b, c, x = self.input(hidden_states).split(self.input.sizes, dim=1)
        mixed = self.conv(ops.activate_mul(x, b, "identity"), state, slots, silu=False)
        out: torch.Tensor = self.output(ops.activate_mul(mixed, c, "identity"))
        return out
