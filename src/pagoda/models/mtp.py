"""The draft head of Qwen3-Next, 3.5 and 3.6 (multi-token prediction, arXiv 2412.19437)."""

import torch
from torch import nn

from pagoda.arch.spec import DraftHeadSpec
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import ColumnLinear, Shard
from pagoda.layers.norm import RMSNorm
from pagoda.models.base import CausalLM


class MtpHead(nn.Module):
    """norm(layer(fc(norm(embedding), norm(hidden state)))), which the model's output head reads.

    The hidden state is what the model's final norm gives, as in vLLM's qwen3_5_mtp.py and llama.cpp
    (ggml-org/llama.cpp#24025); the next token's is this head's own result.
    """

    def __init__(self, model: CausalLM, spec: DraftHeadSpec):
        super().__init__()
        context, whole = model.context, model.spec
        hidden, eps = whole.hidden_size, whole.norm_eps
        self.hidden_size, self.dtype = hidden, context.dtype
        self._parallel = context.parallel
        self.embedding_norm = RMSNorm(context, hidden, eps)
        self.hidden_norm = RMSNorm(context, hidden, eps)
        # One matrix of the checkpoint: the result is a sum, which the layer's norm adds up.
        self.embedding_fc = _half(context, hidden, slice(0, hidden))
        self.hidden_fc = _half(context, hidden, slice(hidden, 2 * hidden))
        self.layer = model.layer_class(context, whole, spec.layer, len(whole.layers))
        self.norm = RMSNorm(context, hidden, eps)
        vocab = whole.vocab_size
        self.embed = VocabTable(context, vocab, hidden) if spec.own_embedding else model.embed
        self.head = VocabTable(context, vocab, hidden) if spec.own_output else model.head

    def reserve(self, num_tokens: int) -> None:
        """Nothing is kept: as `DraftHead.reserve`."""

    def read(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden], as they are."""
        return hidden_states

    def forward(
        self, batch: ForwardBatch, token_ids: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        """As `DraftHead.forward`."""
        embedded = self.embedding_fc(self.embedding_norm(self.embed(token_ids)))
        residual = self.hidden_fc(self.hidden_norm(hidden_states))
        columns = hidden_states.shape[-1]
        embedded = self._parallel.gathered(embedded, columns)
        residual = self._parallel.gathered(residual, columns).float()
        result, residual = self.layer(embedded, residual, batch)
        return self.norm.add(result, residual)[0]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> fp32 [rows, vocab]."""
        return self.head.logits(hidden_states)


def _half(context: LayerContext, hidden_size: int, columns: slice) -> ColumnLinear:
    """Half of the columns of [hidden_size, 2 * hidden_size]."""
    shard = Shard(hidden_size, (context.parallel.share_rows(hidden_size),))
    return ColumnLinear(context, 2 * hidden_size, (shard,), columns=(columns,))
