"""Which of a model's tokens those of a smaller vocabulary are."""

import torch

from pagoda.layers.context import LayerContext
from pagoda.layers.loading import LoadTarget, WeightedLayer
from pagoda.quant.base import ShardSource


class TokenMap(WeightedLayer):
    """int64 [tokens of the smaller vocabulary]: their ids in the larger one. Every rank holds it
    whole."""

    params = ("weight",)

    def __init__(self, context: LayerContext, num_tokens: int, *, offsets: bool):
        """`offsets`: the checkpoint says by how much an id is larger there."""
        super().__init__()
        self.weight = torch.empty(num_tokens, dtype=torch.int64, device=context.device)
        self._offsets = offsets

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        return (LoadTarget(tuple(self.weight.shape), self._load),)

    def _load(self, source: ShardSource) -> None:
        self.weight.copy_(source.read().contiguous().view(torch.int64).flatten())

    def finalize(self) -> None:
        if self._offsets:
            self.weight += torch.arange(len(self.weight), device=self.weight.device)

    def spread(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """fp32 [rows, tokens here] -> fp32 [rows, vocab_size], -infinity for all other tokens."""
        spread = torch.full((len(logits), vocab_size), -torch.inf, device=logits.device)
        spread[:, self.weight] = logits
        return spread

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes
