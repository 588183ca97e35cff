"""Gemma 2, 3 and 4, with a vision transformer or without: what attention and feed-forward part give
is normalized before it is added. Layers of small ones read an input of their own at last."""

from typing import cast

import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import Attention, borrow_scales
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.layer_inputs import LayerInput, LayerInputs, input_of
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
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), then x + norm(input(x)) where a
    layer has an input; a `scaled` one multiplies the sum by a number. Experts stand beside the mlp:
    each result is normalized before they are added."""

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
        self.has_input = spec.layer_inputs is not None
        if spec.layer_inputs is not None:
            self.input = LayerInput(context, spec.layer_inputs, hidden, layer.mlp.activation)
            self.input_result_norm = RMSNorm(context, hidden, eps)
        self.has_experts = layer.experts is not None
        if layer.experts is not None:
            self.mlp_result_norm = RMSNorm(context, hidden, eps)
            self.router_norm = RMSNorm(context, hidden, eps, factor=hidden**-0.5)
            self.experts_norm = RMSNorm(context, hidden, eps)
            self.experts = MixtureOfExperts(context, layer.experts, hidden)
            self.experts_result_norm = RMSNorm(context, hidden, eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        batch: ForwardBatch,
        given: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last part of the layer, from normalized hidden states, the sum that they are the norm
        of, and what is `given` to it (`LayerInputs`); `join` adds what it returns."""
        assert residual is not None
        attended = self.attention(hidden_states, batch)
        hidden_states, residual = self.mlp_norm.add_normed(
            attended, residual, self.attention_result_norm
        )
        result = self.mlp(hidden_states)
        if self.has_experts:
            result = self._with_experts(result, residual.to(hidden_states.dtype))
        if given is None:
            return result, residual
        residual = self.result_norm.plus(result, residual)
        return self.input(residual.to(hidden_states.dtype), given), residual

    def _with_experts(self, dense: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """What mlp and experts give together; `before` is the sum that they read, in the dtype of
        activations, which is what norms give."""
        mixed = self.experts(self.experts_norm(before), self.router_norm(before))
        mixed = self.experts_result_norm(mixed)
        # Of the norm that comes with a sum there is no use here.
        return self.result_norm.add_normed(dense, mixed, self.mlp_result_norm)[1]

    def join(
        self, result: torch.Tensor, residual: torch.Tensor, following: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(What comes after the layer, by the norm that follows it; the sum behind the layer)."""
        scale = 1.0 if self.scale is None else self.scale.value
        last = self.input_result_norm if self.has_input else self.result_norm
        return following.add_normed(result, residual, last, scale)


class Gemma(CausalLM):
    layer_class = GemmaLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        borrow_scales([cast(GemmaLayer, layer).attention for layer in self.layers])
        if spec.layer_inputs is not None and spec.begins:
            self.layer_inputs = LayerInputs(context, spec)
        if spec.vision is not None and context.parallel.sees:
            tower = PooledVisionTower if spec.vision.gated else SiglipTower
            self.vision = tower(context.whole, spec.vision, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.vision is None else {"image": self.vision.slices}

    @property
    def carried_size(self) -> int:
        spec = self.spec.layer_inputs
        inputs = 0 if spec is None else self.spec.inputs_from_here * spec.size
        return self.spec.hidden_size + inputs

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Normalized hidden states [tokens, hidden_size] of the last layer; of a stage that others
        follow the sum behind it and the inputs of later layers, fp32."""
        residual, inputs = self._begun(batch)
        layers = [cast(GemmaLayer, layer) for layer in self.layers]
        hidden_states: torch.Tensor = layers[0].attention_norm(residual).to(self.context.dtype)
        # The norm that follows a stage is the next one's.
        last = self.norm if self.spec.ends else layers[0].attention_norm
        assert isinstance(last, RMSNorm)
        norms = [*(layer.attention_norm for layer in layers[1:]), last]
        spec = self.spec.layer_inputs
        for index, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            given = None if spec is None or inputs is None else input_of(inputs, spec, index)
            result, residual = layer(hidden_states, residual, batch, given)
            hidden_states, residual = layer.join(result, residual, norm)
        if self.spec.ends:
            return hidden_states
        if spec is None or inputs is None:
            return residual
        return torch.cat((residual, inputs[:, len(layers) * spec.size :].float()), 1)

    def _begun(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(The fp32 sum that the first layer reads, what layers are given)."""
        spec, carried = self.spec.layer_inputs, batch.carried
        if carried is None:
            embedded = self.embedded(batch)
            return embedded.float(), None if spec is None else self.layer_inputs(embedded, batch)
        self.context.adapters.slots = batch.adapters
        inputs = carried[:, self.spec.hidden_size :].to(self.context.dtype)
        return carried[:, : self.spec.hidden_size].contiguous(), None if spec is None else inputs
