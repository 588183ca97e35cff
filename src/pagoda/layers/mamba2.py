"""Mamba-2 (arXiv 2405.21060): attention's place taken by a selective state space."""

import torch
from torch import nn

from pagoda.arch.recurrent import Mamba2Spec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard
from pagoda.layers.recurrent import CausalConv, HeadGates, HeadVectors, state_slots


class Mamba2(nn.Module):
    """A short convolution of x, b and c, the state space, and a norm of groups behind the gate."""

    def __init__(
        self, context: LayerContext, spec: Mamba2Spec, hidden_size: int, eps: float, layer: int
    ):
        """The norm has an eps of its own, the spec's."""
        super().__init__()
        self.layer = layer
        self._eps = spec.norm_eps
        heads = context.parallel.share(spec.num_heads, spec.splits["num_heads"])
        groups = context.parallel.share(spec.num_groups, spec.splits["num_groups"])
        self._groups = groups.stop - groups.start
        inner = Shard.of_heads(spec.num_heads, (heads,), spec.head_dim)
        shared = Shard.of_heads(spec.num_groups, (groups,), spec.state_size)
        each = Shard.of_heads(spec.num_heads, (heads,), 1)
        # The output gate, x, b, c and the step size.
        shards = (inner, inner, shared, shared, each)
        self.input = ColumnLinear(context, hidden_size, shards, spec.bias)
        self.conv = CausalConv(context, (inner, shared, shared), spec.conv_width, spec.conv_bias)
        self.gates = HeadGates(context, each, skip=True)
        self.norm = HeadVectors(context, inner, ("weight",))
        self._ones = torch.ones(inner.local_rows // self._groups, device=context.device)
        self.output = RowLinear(context, inner.rows, hidden_size, spec.bias, columns=inner.parts)

    def forward(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]; moves the requests' states on by their tokens."""
        conv_state, state = batch.kv_caches[self.layer]
        slots = state_slots(batch, self.layer)
        inner, _, _, _, heads = self.input.sizes
        channels = self.conv.weight.shape[1]
        gate, mixed, step = self.input(hidden_states).split([inner, channels, heads], dim=1)
        out = ops.state_space(
            self.conv(mixed, conv_state, slots),
            ops.Decay(step, self.gates.rate, self.gates.bias),
            self.gates.skip,
            state,
            slots,
        )
        result: torch.Tensor = self.output(self._normed(ops.activate_mul(out, gate, "silu")))
        return result

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.norm.weight
        assert isinstance(weight, torch.Tensor)
        if self._groups == 1:
            return ops.rms_norm(x, weight, self._eps)
        groups = ops.rms_norm(x.unflatten(1, (self._groups, -1)), self._ones, self._eps)
        return ops.scale_columns(groups.flatten(1), weight)
