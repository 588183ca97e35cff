"""Normalization layers."""

from functools import partial

import torch

from pagoda.kernels import ops
from pagoda.layers.context import LayerContext
from pagoda.layers.loading import LoadTarget, WeightedLayer, load_vector


class Vector(WeightedLayer):
    """fp32 [size]; every rank holds it whole."""

    params = ("weight",)

    def __init__(self, context: LayerContext, size: int):
        super().__init__()
        self.weight = torch.empty(size, dtype=torch.float32, device=context.device)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return (LoadTarget(tuple(self.weight.shape), partial(load_vector, self.weight)),)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class RMSNorm(Vector):
    """Normalizes the last dimension."""

    def __init__(self, context: LayerContext, size: int, eps: float, factor: float = 1.0):
        """`factor`: by which the checkpoint's weight is multiplied."""
        super().__init__(context, size)
        self.eps = eps
        self._factor = factor

    def finalize(self) -> None:
        self.weight *= self._factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size], normalized: the same shape and dtype."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalized sum, sum) of x [..., size] and residual [..., size], in the dtype of each."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x, normalized, + residual; both [tokens, size], and the sum is in residual's dtype."""
        # Of the norm that comes with a sum there is no use here.
        return ops.add_rms_norm(x, residual, self.weight, self.eps, self.weight)[1]

    def add_normed(
        self, x: torch.Tensor, residual: torch.Tensor, by: "RMSNorm", scale: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `add`, of (x normalized by another + residual) * scale."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps, by.weight, scale)


class ProjectionNorm(WeightedLayer):
    """Normalizes all heads of a projection together, of which this rank has some; fp32."""

    params = ("weight",)

    def __init__(self, context: LayerContext, size: int, held: slice, eps: float):
        """`held`: this rank's of the `size` columns."""
        super().__init__()
        self.size = size
        self.eps = eps
        self._held = held
        count = held.stop - held.start
        self.weight = torch.empty(count, dtype=torch.float32, device=context.device)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        load = partial(load_vector, self.weight)
        return (LoadTarget((self.size,), load, rows=(self._held,)),)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def normalize(self, x: torch.Tensor) -> None:
        """All of a projection's columns [tokens, size], in place."""
        ops.norm_in_place(x, self.weight, self.eps)

    def squares(self, x: torch.Tensor, holders: int) -> torch.Tensor:
        """This rank's part of the mean square of all columns: x [tokens, held] -> fp32 [tokens].
        So many ranks hold the same columns."""
        return x.float().square().sum(-1) / (holders * self.size)

    def normalize_part(self, x: torch.Tensor, mean_square: torch.Tensor) -> None:
        """This rank's columns [tokens, held], in place."""
        factor = torch.rsqrt(mean_square + self.eps)[:, None]
        x.copy_(x.float() * factor * self.weight)


class CenteredNorm(Vector):
    """As RMSNorm, of what is left when the mean is taken off: a LayerNorm without bias."""

    def __init__(self, context: LayerContext, size: int, eps: float):
        super().__init__(context, size)
        self.eps = eps
        self._bias = torch.zeros_like(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, size], normalized: the same shape and dtype."""
        return ops.layer_norm(x, self.weight, self._bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `RMSNorm.add`."""
        normed = ops.layer_norm(x, self.weight, self._bias, self.eps, residual)
        return normed, ops.add_to(x, residual)


class LayerNorm(WeightedLayer):
    """Normalizes the last dimension to mean 0 and variance 1; weight and bias stay in fp32."""

    params = ("weight", "bias")

    def __init__(self, context: LayerContext, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = torch.empty(size, dtype=torch.float32, device=context.device)
        self.bias = torch.empty(size, dtype=torch.float32, device=context.device)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The norm of x [tokens, hidden], or of x + residual, and what it is the norm of."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps, residual)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `RMSNorm.add`."""
        return self(x, residual), ops.add_to(x, residual)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        vector = self.weight if param == "weight" else self.bias
        return (LoadTarget(tuple(vector.shape), partial(load_vector, vector)),)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes
