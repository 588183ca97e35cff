"""Encoders: BERT (arXiv 1810.04805), RoBERTa (1907.11692), Nomic's (2402.01613), ModernBERT
(2412.13663) and EmbeddingGemma (2509.20354), with or without a classifier."""

import torch
from torch import nn

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.kernels import ops
from pagoda.layers.attention import EncoderAttention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.mlp import GatedMlp, Mlp
from pagoda.layers.norm import CenteredNorm, LayerNorm, RMSNorm
from pagoda.models.base import Model

Norm = LayerNorm | CenteredNorm | RMSNorm


def _norm(context: LayerContext, spec: ModelSpec) -> Norm:
    assert spec.encoder is not None
    kind: type[Norm] = LayerNorm if spec.encoder.norm_bias else CenteredNorm
    kind = RMSNorm if spec.encoder.rms_norms else kind
    return kind(context, spec.hidden_size, spec.norm_eps)


class EncoderLayer(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)); or x + attention(norm(x)), then
    x + mlp(norm(x)), whose first norm the first layer may be without; or, sandwiched,
    x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec):
        super().__init__()
        assert isinstance(layer.mixer, AttentionSpec) and layer.mlp is not None
        hidden = spec.hidden_size
        self.norms = layer.norms
        if layer.norms != "mlp":
            self.attention_norm = _norm(context, spec)
        self.attention = EncoderAttention(context, layer.mixer, hidden, spec.norm_eps)
        self.mlp_norm = _norm(context, spec)
        mlp = GatedMlp if layer.mlp.gated else Mlp
        self.mlp = mlp(context, layer.mlp, hidden)
        self.sandwiched = layer.sandwiched
        if layer.sandwiched:
            self.attention_result_norm = RMSNorm(context, hidden, spec.norm_eps)
            self.result_norm = RMSNorm(context, hidden, spec.norm_eps)
        self._dtype = context.dtype

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        if self.sandwiched:
            normed = self.attention_norm(x).to(self._dtype)
            x = self.attention_result_norm.plus(self.attention(normed, batch), x)
            return self.result_norm.plus(self.mlp(self.mlp_norm(x).to(self._dtype)), x)
        if self.norms == "sums":
            x = self.attention_norm(self.attention(x, batch), x)
            out: torch.Tensor = self.mlp_norm(self.mlp(x), x)
            return out
        normed = x if self.norms == "mlp" else self.attention_norm(x)
        x = x + self.attention(normed, batch)
        out = x + self.mlp(self.mlp_norm(x))
        return out


class Encoder(Model):
    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        encoder = spec.encoder
        assert encoder is not None
        hidden = spec.hidden_size
        self.encoder = encoder
        self._dtype = torch.float32 if encoder.rms_norms else context.dtype
        if spec.begins:
            self._add_tables(context, spec, encoder)
        self.layers = nn.ModuleList(EncoderLayer(context, spec, layer) for layer in spec.layers)
        if spec.ends and encoder.final_norm:
            self.norm = _norm(context, spec)
        if spec.ends and spec.pooling.labels:
            self.dense = replicated(context, hidden, hidden, bias=encoder.head_bias)
            if encoder.head == "normed":
                self.head_norm = _norm(context, spec)
            self.classifier = replicated(context, hidden, len(spec.pooling.labels), bias=True)

    def _add_tables(self, context: LayerContext, spec: ModelSpec, encoder: EncoderSpec) -> None:
        hidden = spec.hidden_size
        self.embed = VocabTable(context, spec.vocab_size, hidden)
        # Too small to be worth an exchange between ranks.
        if encoder.num_positions:
            self.positions = VocabTable(context.whole, encoder.num_positions, hidden)
        if encoder.num_token_types:
            self.types = VocabTable(context.whole, encoder.num_token_types, hidden)
        if encoder.embed_norm:
            self.embed_norm = _norm(context, spec)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] of the last layer; fp32 of a stage that others
        follow."""
        carried = batch.carried
        x = self._embedded(batch) if carried is None else carried.to(self._dtype)
        for layer in self.layers:
            x = layer(x, batch)
        if not self.spec.ends:
            return x.float()
        return self.norm(x).to(self.context.dtype) if self.encoder.final_norm else x

    def _embedded(self, batch: ForwardBatch) -> torch.Tensor:
        x: torch.Tensor = self.embed(batch.token_ids)
        if self.encoder.num_positions:
            x = x + self.positions(batch.positions + self.encoder.position_offset)
        if self.encoder.num_token_types:
            assert batch.token_types is not None
            x = x + self.types(batch.token_types.clamp(max=self.encoder.num_token_types - 1))
        if self.encoder.embed_norm:
            x = self.embed_norm(x)
        if self.encoder.rms_norms:
            x = x.float() * self.spec.embedding_scale
        return x

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        inner = self.dense(pooled)
        if self.encoder.head == "tanh":
            inner = torch.tanh(inner)
        else:
            inner = self.head_norm(ops.activate(inner, "gelu"))
        out: torch.Tensor = self.classifier(inner)
        return out
