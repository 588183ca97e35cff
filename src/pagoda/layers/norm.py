"""Normalization layers."""

from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector
from pagoda.quant.base import ShardSource


class RMSNorm(WeightedLayer):
    """Normalizes the last dimension; every rank holds it whole. The weight stays in fp32."""

    params = ("weight",)

    def __init__(self, context: LayerContext, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = torch.empty(size, dtype=torch.float32, device=context.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalized sum, sum) of x and residual, in the dtype of each."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return (LoadTarget(tuple(self.weight.shape), self._load),)

    def _load(self, source: ShardSource) -> None:
        load_vector(self.weight, source)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class LayerNorm(WeightedLayer):
    """Normalizes the last dimension to mean 0 and variance 1; weight and bias stay in fp32."""

    params = ("weight", "bias")

    def __init__(self, context: LayerContext, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = torch.empty(size, dtype=torch.float32, device=context.device)
        self.bias = torch.empty(size, dtype=torch.float32, device=context.device)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Of x + residual, if there is one."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps, residual)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        vector = self.weight if param == "weight" else self.bias
        return (LoadTarget(tuple(vector.shape), partial(load_vector, vector)),)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes
