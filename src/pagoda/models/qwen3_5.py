"""Qwen3.5 and 3.6, dense: gated delta nets (arXiv 2412.06464) between layers of gated attention."""

import torch

from pagoda.arch.spec import DeltaNetSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.delta_net import DeltaNet
from pagoda.layers.moe import feed_forward
from pagoda.layers.norm import RMSNorm
from pagoda.models.base import CausalLM, DecoderLayer
from pagoda.models.qwen3_vl import Qwen3VL


class Qwen35Layer(DecoderLayer):
    """x + mixer(norm(x)), then x + mlp(norm(x)); the mixer is a delta net or attention."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.is_delta_net = isinstance(layer.mixer, DeltaNetSpec)
        if isinstance(layer.mixer, DeltaNetSpec):
            self.delta_net = DeltaNet(context, layer.mixer, hidden, eps, index)
        else:
            self.attention = Attention(context, layer.mixer, hidden, eps, index)
        self.mlp_norm = RMSNorm(context, hidden, eps)
        self.mlp = feed_forward(context, layer, hidden)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states.float()
            hidden_states = self.attention_norm(hidden_states)
        else:
            hidden_states, residual = self.attention_norm.add(hidden_states, residual)
        mixer = self.delta_net if self.is_delta_net else self.attention
        hidden_states = mixer(hidden_states, batch)
        hidden_states, residual = self.mlp_norm.add(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Qwen35ForCausalLM(CausalLM):
    layer_class = Qwen35Layer


class Qwen35(Qwen3VL):
    """With its vision tower."""

    layer_class = Qwen35Layer
