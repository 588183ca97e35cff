"""OLMo 2 and 3: what attention and feed-forward part give is normalized, and not what they read."""

import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.kernels import ops
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.moe import feed_forward
from pagoda.layers.norm import RMSNorm
from pagoda.models.base import CausalLM, DecoderLayer


class Olmo2Layer(DecoderLayer):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        assert isinstance(layer.mixer, AttentionSpec)
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention = Attention(context, layer.mixer, hidden, eps, index)
        self.attention_result_norm = RMSNorm(context, hidden, eps)
        self.mlp = feed_forward(context, layer, hidden)
        self.result_norm = RMSNorm(context, hidden, eps)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = hidden_states.dtype
        if residual is None:
            residual = hidden_states.float()
        else:
            residual = ops.add_to(hidden_states, residual)
        attended = self.attention(residual.to(dtype), batch)
        residual = self.attention_result_norm.plus(attended, residual)
        return self.result_norm(self.mlp(residual.to(dtype))), residual


class Olmo2ForCausalLM(CausalLM):
    layer_class = Olmo2Layer
