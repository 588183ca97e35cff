"""Command R7B and A: attention and feed-forward part read the same, and are added side by side."""

import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.kernels import ops
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.moe import feed_forward
from pagoda.layers.norm import CenteredNorm
from pagoda.models.base import CausalLM, DecoderLayer


class Cohere2Layer(DecoderLayer):
    """x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        assert isinstance(layer.mixer, AttentionSpec)
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention_norm = CenteredNorm(context, hidden, eps)
        self.attention = Attention(context, layer.mixer, hidden, eps, index)
        self.mlp = feed_forward(context, layer, hidden)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states.float()
            hidden_states = self.attention_norm(hidden_states)
        else:
            hidden_states, residual = self.attention_norm.add(hidden_states, residual)
        residual = ops.add_to(self.attention(hidden_states, batch), residual)
        return self.mlp(hidden_states), residual


class Cohere2ForCausalLM(CausalLM):
    layer_class = Cohere2Layer
    norm_class = CenteredNorm
