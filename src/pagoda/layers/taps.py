"""Hidden states between layers, kept for a draft head that reads them."""

import torch

from pagoda.kernels import ops
from pagoda.layers.context import LayerContext


class LayerTaps:
    """What chosen layers of a model read in the last step.

    The memory stays where it is, so that recorded and captured steps write to it as others do.
    """

    def __init__(self, context: LayerContext, layers: tuple[int, ...], hidden_size: int):
        """`layers`: whose inputs are kept; the number of layers stands for the last one's
        output."""
        self._context = context
        self._places = {layer: place for place, layer in enumerate(layers)}
        self._kept: list[torch.Tensor] = []
        self._hidden_size = hidden_size

    def reserve(self, num_tokens: int) -> None:
        """Make room for steps of so many tokens."""
        self._kept = [
            torch.zeros(
                (num_tokens, self._hidden_size),
                dtype=self._context.dtype,
                device=self._context.device,
            )
            for _ in self._places
        ]

    def keep(self, layer: int, hidden_states: torch.Tensor, residual: torch.Tensor | None) -> None:
        """What goes into `layer`: hidden_states [tokens, hidden] and the fp32 sum of the layers
        before, residual [tokens, hidden]; not before the first layer."""
        place = self._places.get(layer)
        if place is None:
            return
        assert residual is not None  # `arch.eagle3` lets no head read the first layer's input
        if not self._kept or len(self._kept[place]) < len(hidden_states):
            self.reserve(len(hidden_states))
        ops.keep_sum(hidden_states, residual, self._kept[place])

    def joined(self, num_tokens: int) -> torch.Tensor:
        """The last step's first tokens: [num_tokens, layers * hidden]."""
        return torch.cat([kept[:num_tokens] for kept in self._kept], dim=1)
