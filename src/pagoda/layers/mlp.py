"""Feed-forward layers."""

import torch
from torch import nn

from pagoda.arch.spec import MlpSpec
from pagoda.base.errors import ConfigError
from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.linear import ColumnLinear, RowLinear, Shard


class GatedMlp(nn.Module):
    """down(activation(gate(x)) * up(x)) (SwiGLU and GeGLU, arXiv 2002.05202)."""

    def __init__(self, context: LayerContext, spec: MlpSpec, hidden_size: int):
        super().__init__()
        size = spec.intermediate_size
        shard = Shard(size, (context.parallel.share(size, "intermediate features"),))
        self.activation = spec.activation
        self.cut = spec.cut
        if spec.cut is not None and context.parallel.size > 1:
            raise ConfigError(
                "Feed-forward layers that keep their largest features alone (Gemma 3n) cannot be "
                "split over devices; leave --tensor-parallel-size at 1."
            )
        self.gate_up = ColumnLinear(context, hidden_size, (shard, shard), spec.bias)
        self.down = RowLinear(context, size, hidden_size, spec.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        out: torch.Tensor = self.down(self._inner(x))
        return out

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of `forward`'s sum: [tokens, hidden] -> [tokens, hidden]."""
        return self.down.partial(self._inner(x))

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up(x)
        if self.cut is not None:
            ops.cut_columns(gate_up[:, : self.gate_up.sizes[0]], self.cut)
        return ops.activate_and_mul(gate_up, self.activation)


class Mlp(nn.Module):
    """Two linear layers with an activation between them: down(activation(up(x)))."""

    def __init__(self, context: LayerContext, spec: MlpSpec, hidden_size: int):
        super().__init__()
        size = spec.intermediate_size
        shard = Shard(size, (context.parallel.share(size, "intermediate features"),))
        self.activation = spec.activation
        self.up = ColumnLinear(context, hidden_size, (shard,), spec.bias)
        self.down = RowLinear(context, size, hidden_size, spec.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        out: torch.Tensor = self.down(self._inner(x))
        return out

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of `forward`'s sum: [tokens, hidden] -> [tokens, hidden]."""
        return self.down.partial(self._inner(x))

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.up(x)
        if self.activation == "relu2":  # x times relu(x)
            return ops.activate_mul(inner, inner, "relu")
        return ops.activate(inner, self.activation)


def mlp(context: LayerContext, spec: MlpSpec, hidden_size: int) -> GatedMlp | Mlp:
    return (GatedMlp if spec.gated else Mlp)(context, spec, hidden_size)
