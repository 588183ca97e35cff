"""What each layer reads of a token beside its hidden state (per-layer embeddings)."""

import torch
from torch import nn

from pagoda.arch.spec import ModelSpec
from pagoda.arch.streams import LayerInputSpec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.norm import RMSNorm


class LayerInputs(nn.Module):
    """(norm(projection(embedding) / sqrt(hidden)) + table[token] * sqrt(size)) / sqrt(2), with a
    norm for each layer's part of it."""

    def __init__(self, context: LayerContext, model: ModelSpec):
        super().__init__()
        assert model.layer_inputs is not None
        spec = self.spec = model.layer_inputs
        self._num_layers = model.inputs_from_here
        width = self._num_layers * spec.size
        self.embed = VocabTable(context, spec.vocab_size, width, model.vocab_size)
        self.projection = replicated(context, model.hidden_size, width)
        # A norm takes off what a sum was divided by, but for what that makes of eps.
        eps = model.norm_eps * model.hidden_size
        self.norm = RMSNorm(context, spec.size, eps, factor=0.5**0.5)

    def forward(self, embedded: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden_size] of the first layer's inputs -> [tokens, layers * size]."""
        projected = self.projection(embedded).unflatten(1, (self._num_layers, self.spec.size))
        ids = batch.token_ids
        if batch.embed_rows is not None:
            ids = torch.where(batch.embed_rows, self.spec.media_row, ids)
        rows = ops.scale(self.embed(ids), (self.spec.size / 2) ** 0.5)
        return ops.add_to(rows, self.norm(projected).flatten(1))


def input_of(inputs: torch.Tensor, spec: LayerInputSpec, index: int) -> torch.Tensor:
    """A layer's part of what `LayerInputs` gives: [tokens, size]."""
    return inputs[:, index * spec.size : (index + 1) * spec.size]


class LayerInput(nn.Module):
    """projection(activation(gate(x)) * a layer's input)."""

    def __init__(
        self, context: LayerContext, spec: LayerInputSpec, hidden_size: int, activation: str
    ):
        super().__init__()
        self.gate = replicated(context, hidden_size, spec.size)
        self.projection = replicated(context, spec.size, hidden_size)
        self._activation = activation

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden_size] and `given` [tokens, size] -> [tokens, hidden_size]."""
        gated = ops.activate_mul(given, self.gate(x), self._activation)
        out: torch.Tensor = self.projection(gated)
        return out
