"""Gemma 2, 3 and 4, with a vision transformer or without: what attention and feed-forward part give
is normalized before it is added."""

from typing import cast

import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.mlp import GatedMlp
from pagoda.layers.moe import MixtureOfExperts
from pagoda.layers.norm import RMSNorm, Vector
from pagoda.layers.pooled_vision import PooledVisionTower
from pagoda.layers.siglip_vision import SiglipTower
from pagoda.models.base import CausalLM, DecoderLayer, Encoders


class Scalar(Vector):
    """A single number."""

    value = 1.0

    def __init__(self, context: LayerContext):
        super().__init__(context, 1)

    def finalize(self) -> None:
        self.value = float(self.weight)


class GemmaLayer(DecoderLayer):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), which a `scaled` one multiplies by
    a number. Experts stand beside the mlp: each result is normalized before they are added."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        assert isinstance(layer.mixer, AttentionSpec) and layer.mlp is not None
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.attention = Attention(context, layer.mixer, hidden, eps, index)
        self.attention_result_norm = RMSNorm(context, hidden, eps)
        self.mlp_norm = RMSNorm(context, hidden, eps)
        self.mlp = GatedMlp(context, layer.mlp, hidden)
        self.result_norm = RMSNorm(context, hidden, eps)
        self.scale = Scalar(context) if layer.scaled else None
        self.has_experts = layer.experts is not None
        if layer.experts is not None:
            self.mlp_result_norm = RMSNorm(context, hidden, eps)
            self.router_norm = RMSNorm(context, hidden, eps, factor=hidden**-0.5)
            self.experts_norm = RMSNorm(context, hidden, eps)
            self.experts = MixtureOfExperts(context, layer.experts, hidden)
            self.experts_result_norm = RMSNorm(context, hidden, eps)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mixture's part, from normalized hidden states and the sum that they are the norm of;
        `join` adds what it returns."""
        assert residual is not None
        attended = self.attention(hidden_states, batch)
        hidden_states, residual = self.mlp_norm.add_normed(
            attended, residual, self.attention_result_norm
        )
        dense = self.mlp(hidden_states)
        if not self.has_experts:
            return dense, residual
        # The sum in the dtype of activations, which is what norms give.
        before = residual.to(hidden_states.dtype)
        mixed = self.experts(self.experts_norm(before), self.router_norm(before))
        mixed = self.experts_result_norm(mixed)
        # Of the norm that comes with a sum there is no use here.
        return self.result_norm.add_normed(dense, mixed, self.mlp_result_norm)[1], residual

    def join(
        self, result: torch.Tensor, residual: torch.Tensor, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(What comes after the layer, by the norm that follows it; the sum behind the layer)."""
        scale = 1.0 if self.scale is None else self.scale.value
        return following.add_normed(result, residual, self.result_norm, scale)


class Gemma(CausalLM):
    layer_class = GemmaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        if spec.vision is not None and context.parallel.sees:
            tower = PooledVisionTower if spec.vision.gated else SiglipTower
            self.vision = tower(context.whole, spec.vision, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.vision is None else {"image": self.vision.slices}

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Normalized hidden states [tokens, hidden_size] of the last layer."""
        hidden_states = self.embedded(batch)
        layers = [cast(GemmaLayer, layer) for layer in self.layers]
        residual = hidden_states.float()
        hidden_states = layers[0].attention_norm(hidden_states)
        assert isinstance(self.norm, RMSNorm)
        norms = [*(layer.attention_norm for layer in layers[1:]), self.norm]
        for layer, norm in zip(layers, norms, strict=True):
            result, residual = layer(hidden_states, residual, batch)
            hidden_states, residual = layer.join(result, residual, norm)
        return hidden_states
