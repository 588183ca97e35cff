"""Llama (arXiv 2302.13971, 2407.21783) and what is built like it: SmolLM2, Mistral."""

import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.latent_attention import LatentAttention
from pagoda.layers.moe import feed_forward
from pagoda.layers.norm import RMSNorm
from pagoda.models.base import CausalLM, DecoderLayer
from pagoda.models.eagle3 import Eagle3Head


class LlamaLayer(DecoderLayer):
    """x + attention(norm(x)), then x + mlp(norm(x)), where there is one."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.add_mixer(context, spec, layer, index)
        self.feeds_forward = layer.feeds_forward
        if self.feeds_forward:
            self.mlp_norm = RMSNorm(context, hidden, eps)
            self.mlp = feed_forward(context, layer, hidden)

    def add_mixer(
        self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int
    ) -> None:
        """Make what `mix` calls."""
        assert isinstance(layer.mixer, AttentionSpec)
        mixer, hidden = layer.mixer, spec.hidden_size
        self.attention: Attention | LatentAttention
        if mixer.latent is not None:
            self.attention = LatentAttention(context, mixer, mixer.latent, hidden, index)
        else:
            self.attention = Attention(context, mixer, hidden, spec.norm_eps, index)

    def mix(self, hidden_states: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        out: torch.Tensor = self.attention(hidden_states, batch)
        return out

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states.float()
            hidden_states = self.attention_norm(hidden_states)
        else:
            hidden_states, residual = self.attention_norm.add(hidden_states, residual)
        hidden_states = self.mix(hidden_states, batch)
        if not self.feeds_forward:
            return hidden_states, residual
        hidden_states, residual = self.mlp_norm.add(hidden_states, residual)
        return self.mlp(hidden_states), residual


class LlamaForCausalLM(CausalLM):
    layer_class = LlamaLayer
    draft_head_class = Eagle3Head
