"""Gemma 3n (ai.google.dev/gemma/docs/gemma-3n): a token has several hidden states, of which layers
compute the first and guess the others; a product of low rank stands beside attention, and each
layer reads an input of its own."""

from typing import cast

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.arch.streams import AltUpSpec
from pagoda.kernels import ops
from pagoda.layers.attention import Attention, borrow_scales
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.layer_inputs import LayerInput, LayerInputs, input_of
from pagoda.layers.linear import ExactLinear, Shard, replicated
from pagoda.layers.mlp import GatedMlp
from pagoda.layers.mobile_net import MobileNet
from pagoda.layers.norm import RMSNorm, Vector
from pagoda.models.base import CausalLM, DecoderLayer, Encoders

Streams = list[torch.Tensor]
"""fp32 [tokens, hidden_size] each: a token's hidden states, the first being the computed one."""

# A stream's mean square is taken to be at least this (Gemma3nTextModel).
_LEAST = 1e-5


class AltUp(nn.Module):
    """What a layer guesses of all streams, and how it corrects these by what it computed."""

    def __init__(self, context: LayerContext, spec: AltUpSpec, hidden_size: int, eps: float):
        super().__init__()
        count = spec.num_streams
        self.router_norm = RMSNorm(context, hidden_size, eps, factor=1 / hidden_size)
        self.router = ExactLinear(context, hidden_size, (Shard.whole(count),))
        self.predict = ExactLinear(context, count, (Shard.whole(count**2),))
        self.correct = ExactLinear(context, count, (Shard.whole(count),))
        self.scale = Vector(context, hidden_size) if spec.scaled else None
        self._dtype = context.dtype

    def predicted(self, streams: Streams) -> Streams:
        """Each stream and a sum of all, weighted by what the first one says."""
        weights = self.predict(self._routed(streams[0]))
        return ops.mix_streams(weights.float(), streams, streams)

    def corrected(self, predicted: Streams, computed: torch.Tensor) -> Streams:
        """Each predicted stream and a share of by how much the first is wrong; `computed`, fp32
        [tokens, hidden_size], is what it should be."""
        weights = self.correct(self._routed(computed))
        error = ops.add_to(computed, ops.scale(predicted[0], -1.0))
        return ops.mix_streams(weights.float(), predicted, [error], plus=1.0)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.scale is None else ops.scale_columns(x, self.scale.weight)

    def _routed(self, x: torch.Tensor) -> torch.Tensor:
        return ops.soft_cap(self.router(self.router_norm(x).to(self._dtype)), 1.0)


class Laurel(nn.Module):
    """A product of low rank (LAuReL, arXiv 2411.07501)."""

    def __init__(self, context: LayerContext, rank: int, hidden_size: int, eps: float):
        super().__init__()
        self.down = replicated(context, hidden_size, rank)
        self.up = replicated(context, rank, hidden_size)
        self.norm = RMSNorm(context, hidden_size, eps)

    def added(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x + norm(up(down(x))); residual is fp32 and stays as it is."""
        return self.norm.plus(self.up(self.down(x)), ops.add_gated(residual, x.float(), None))


class Gemma3nLayer(DecoderLayer):
    """Guesses all streams, computes the first one anew, and corrects the guesses by it; then the
    layer's input is added to the others."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        assert isinstance(layer.mixer, AttentionSpec) and layer.mlp is not None
        assert spec.altup is not None and spec.layer_inputs is not None
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.altup = AltUp(context, spec.altup, hidden, eps)
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.laurel = Laurel(context, spec.altup.laurel_rank, hidden, eps)
        self.attention = Attention(context, layer.mixer, hidden, eps, index)
        self.attention_result_norm = RMSNorm(context, hidden, eps)
        self.mlp_norm = RMSNorm(context, hidden, eps)
        self.mlp = GatedMlp(context, layer.mlp, hidden)
        self.result_norm = RMSNorm(context, hidden, eps)
        self.input = LayerInput(context, spec.layer_inputs, hidden, layer.mlp.activation)
        self.input_result_norm = RMSNorm(context, hidden, eps)
        self._dtype = context.dtype

    def computed(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """What attention, the product of low rank and mlp make of a stream, which stays as it
        is."""
        normed = self.attention_norm(x).to(self._dtype)
        residual = self.laurel.added(normed, x)
        hidden_states, residual = self.mlp_norm.add_normed(
            self.attention(normed, batch), residual, self.attention_result_norm, 0.5**0.5
        )
        return self.result_norm.plus(self.mlp(hidden_states), residual)

    def advanced(self, streams: Streams, batch: ForwardBatch, given: torch.Tensor) -> Streams:
        """The streams behind the layer; `given` [tokens, size] is its own input (`LayerInputs`)."""
        predicted = self.altup.predicted(streams)
        first, *others = self.altup.corrected(predicted, self.computed(predicted[0], batch))
        result = self.input(self.altup.scaled(first).to(self._dtype), given)
        return [first, *(self.input_result_norm.plus(result, other) for other in others)]


class StreamEnds(nn.Module):
    """Products that make the other streams of an embedding, and of streams one hidden state."""

    def __init__(self, context: LayerContext, spec: ModelSpec, altup: AltUpSpec):
        super().__init__()
        if spec.begins:
            self.expand = self._products(context, altup, spec.hidden_size)
        if spec.ends:
            self.join = self._products(context, altup, spec.hidden_size)
        self._dtype = context.dtype

    @staticmethod
    def _products(context: LayerContext, spec: AltUpSpec, hidden_size: int) -> nn.ModuleList:
        return nn.ModuleList(
            replicated(context, hidden_size, hidden_size) for _ in range(1, spec.num_streams)
        )

    def expanded(self, x: torch.Tensor) -> Streams:
        """The embeddings [tokens, hidden_size], and products of them that are as large."""
        others = [ops.match_rms(part(x), x, _LEAST) for part in self.expand]
        return [each.float() for each in (x, *others)]

    def joined(self, streams: Streams) -> torch.Tensor:
        """The mean of the first stream, and of products of the others that are as large."""
        first, *others = streams
        parts = [
            ops.match_rms(join(other.to(self._dtype)).float(), first, _LEAST)
            for join, other in zip(self.join, others, strict=True)
        ]
        for part in parts:
            first = ops.add_to(part, first)
        return ops.scale(first, 1 / len(streams))


class Gemma3n(CausalLM):
    layer_class = Gemma3nLayer

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        assert spec.altup is not None and spec.layer_inputs is not None
        borrow_scales([cast(Gemma3nLayer, layer).attention for layer in self.layers])
        if spec.begins:
            self.layer_inputs = LayerInputs(context, spec)
        self.altup = StreamEnds(context, spec, spec.altup)
        self._num_streams, self._inputs = spec.altup.num_streams, spec.layer_inputs
        if spec.vision is not None and context.parallel.sees:
            self.vision = MobileNet(context.whole, spec.vision, spec.hidden_size)

    @property
    def encoders(self) -> Encoders:
        return {} if self.spec.vision is None else {"image": self.vision.slices}

    @property
    def carried_size(self) -> int:
        inputs = self.spec.inputs_from_here * self._inputs.size
        return self._num_streams * self.spec.hidden_size + inputs

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Normalized hidden states [tokens, hidden_size] of the last layer; of a stage that others
        follow all streams behind it and the inputs of later layers, fp32."""
        streams, inputs = self._begun(batch)
        for index, layer in enumerate(self.layers):
            given = input_of(inputs, self._inputs, index)
            streams = cast(Gemma3nLayer, layer).advanced(streams, batch, given)
        if not self.spec.ends:
            later = inputs[:, len(self.layers) * self._inputs.size :].float()
            return torch.cat((*streams, later), 1)
        hidden_states: torch.Tensor = self.norm(self.altup.joined(streams))
        return hidden_states.to(self.context.dtype)

    def _begun(self, batch: ForwardBatch) -> tuple[Streams, torch.Tensor]:
        """The streams that the first layer reads, and what layers are given."""
        carried = batch.carried
        if carried is None:
            embedded = self.embedded(batch)
            return self.altup.expanded(embedded), self.layer_inputs(embedded, batch)
        self.context.adapters.slots = batch.adapters
        width = self._num_streams * self.spec.hidden_size
        streams = carried[:, :width].chunk(self._num_streams, 1)
        inputs = carried[:, width:].to(self.context.dtype)
        return [stream.contiguous() for stream in streams], inputs.contiguous()
