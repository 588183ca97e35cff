"""EAGLE-3 heads (arXiv 2503.01840), which guess from hidden states of several of a model's layers.

Facts: the names, shapes and order of vLLM's llama_eagle3.py and llama.cpp's src/models/eagle3.cpp.
"""

import torch
from torch import nn

from pagoda.arch.spec import AttentionSpec, DraftHeadSpec, Eagle3Spec, LayerSpec
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.moe import feed_forward
from pagoda.layers.norm import RMSNorm
from pagoda.layers.token_map import TokenMap
from pagoda.models.base import CausalLM


class Eagle3Layer(nn.Module):
    """Llama's layer, but that attention reads a token's embedding beside the hidden state."""

    def __init__(self, context: LayerContext, spec: Eagle3Spec, layer: LayerSpec, index: int):
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        assert isinstance(layer.mixer, AttentionSpec)
        self._norm_before_residual = spec.norm_before_residual
        self.attention_norm = RMSNorm(context, hidden, eps)
        self.hidden_norm = RMSNorm(context, hidden, eps)
        self.attention = Attention(context, layer.mixer, hidden, eps, index, 2 * hidden)
        self.mlp_norm = RMSNorm(context, hidden, eps)
        self.mlp = feed_forward(context, layer, hidden)

    def forward(
        self, embedded: torch.Tensor, hidden_states: torch.Tensor, batch: ForwardBatch
    ) -> torch.Tensor:
        """Embeddings and hidden states, both [tokens, hidden] -> fp32 [tokens, hidden]."""
        normed = self.hidden_norm(hidden_states)
        kept = normed if self._norm_before_residual else hidden_states
        residual = kept.to(torch.float32, copy=True)  # the norm below adds to it in place
        both = torch.cat((self.attention_norm(embedded), normed), dim=-1)
        normed, residual = self.mlp_norm.add(self.attention(both, batch), residual)
        out: torch.Tensor = residual + self.mlp(normed)
        return out


class Eagle3Head(nn.Module):
    """fc of three of the model's hidden states, its layer, and a head of its own over some of the
    model's tokens. The next token's hidden state is its own, before the last norm."""

    def __init__(self, model: CausalLM, spec: DraftHeadSpec):
        super().__init__()
        own, context, whole = spec.eagle3, model.context, model.spec
        assert own is not None and model.taps is not None
        hidden, eps = own.hidden_size, own.norm_eps
        width = len(own.reads) * whole.hidden_size
        self.hidden_size, self.dtype = hidden, context.dtype
        self._vocab_size = whole.vocab_size
        self._taps = model.taps
        self.read_norm = RMSNorm(context, width, eps) if own.norm_before_fc else None
        self.fc = replicated(context, width, hidden)
        self.layer = Eagle3Layer(context, own, spec.layer, len(whole.layers))
        self.norm = RMSNorm(context, hidden, eps)
        self.embed = model.embed
        if spec.own_embedding:
            self.embed = VocabTable(context, whole.vocab_size, hidden)
        self.head = VocabTable(context, own.vocab_size, hidden) if spec.own_output else model.head
        self.token_map: TokenMap | None = None
        if own.mapped != "no":
            offsets = own.mapped == "by offset"
            self.token_map = TokenMap(context, own.vocab_size, offsets=offsets)

    def reserve(self, num_tokens: int) -> None:
        """As `DraftHead.reserve`."""
        self._taps.reserve(num_tokens)

    def read(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """As `DraftHead.read`: [tokens, hidden] of the model, whose other layers' were kept ->
        [tokens, hidden] of the head."""
        read = self._taps.joined(len(hidden_states))
        out: torch.Tensor = self.fc(read if self.read_norm is None else self.read_norm(read))
        return out

    def forward(
        self, batch: ForwardBatch, token_ids: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        """As `DraftHead.forward`: int64 [tokens] and [tokens, hidden] -> [tokens, hidden]."""
        out: torch.Tensor = self.layer(self.embed(token_ids), hidden_states, batch)
        return out.to(self.dtype)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> fp32 [rows, the model's vocab], -infinity where it has no token."""
        logits = self.head.logits(self.norm(hidden_states))
        if self.token_map is None:
            return logits
        return self.token_map.spread(logits, self._vocab_size)
