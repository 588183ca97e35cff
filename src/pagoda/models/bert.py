"""BERT and RoBERTa (arXiv 1810.04805, 1907.11692), with or without a classifier."""

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import EncoderAttention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.mlp import Mlp
from pagoda.layers.norm import LayerNorm
from pagoda.models.base import Model


class BertLayer(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec):
        super().__init__()
        assert isinstance(layer.mixer, AttentionSpec) and layer.mlp is not None
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.attention = EncoderAttention(context, layer.mixer, hidden)
        self.attention_norm = LayerNorm(context, hidden, eps)
        self.mlp = Mlp(context, layer.mlp, hidden)
        self.mlp_norm = LayerNorm(context, hidden, eps)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x = self.attention_norm(self.attention(x, batch), x)
        out: torch.Tensor = self.mlp_norm(self.mlp(x), x)
        return out


class Bert(Model):
    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        assert spec.encoder is not None
        hidden = spec.hidden_size
        self.offset = spec.encoder.position_offset
        self.last_type = spec.encoder.num_token_types - 1
        self.embed = VocabTable(context, spec.vocab_size, hidden)
        # Too small to be worth an exchange between ranks.
        self.positions = VocabTable(context.whole, spec.encoder.num_positions, hidden)
        self.types = VocabTable(context.whole, spec.encoder.num_token_types, hidden)
        self.embed_norm = LayerNorm(context, hidden, spec.norm_eps)
        self.layers = nn.ModuleList(BertLayer(context, spec, layer) for layer in spec.layers)
        if spec.pooling.labels:
            self.dense = replicated(context, hidden, hidden, bias=True)
            self.classifier = replicated(context, hidden, len(spec.pooling.labels), bias=True)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] of the last layer."""
        assert batch.token_types is not None
        x: torch.Tensor = self.embed(batch.token_ids) + self.positions(
            batch.positions + self.offset
        )
        x = self.embed_norm(x + self.types(batch.token_types.clamp(max=self.last_type)))
        for layer in self.layers:
            x = layer(x, batch)
        return x

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classifier(torch.tanh(self.dense(pooled)))
        return out
