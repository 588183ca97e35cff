"""What models offer to the runner."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import nn

from pagoda.arch.spec import DraftHeadSpec, LayerSpec, ModelSpec
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.linear import replicated
from pagoda.layers.loading import WeightedLayer
from pagoda.layers.norm import CenteredNorm, LayerNorm, RMSNorm
from pagoda.layers.patches import Grid, Slices
from pagoda.layers.taps import LayerTaps

Encode = Callable[[torch.Tensor, Grid], Slices]
"""fp32 [patches, values] of `grid` (frames, rows and columns of patches) -> [1 + layers, tokens,
hidden_size]: the embeddings of a medium's tokens, and what `ForwardBatch.layer_embeds` adds to
them."""
Encoders = Mapping[str, Encode]
"""By kind of medium."""


class DraftHead(Protocol):
    """Layers that read the model's hidden states and guess the token behind the next one."""

    hidden_size: int
    dtype: torch.dtype
    """Those of the hidden states that `read` gives and `forward` takes."""

    def reserve(self, num_tokens: int) -> None:
        """Make room for what is kept of the model's steps of so many tokens."""

    def read(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What `forward` takes for a step's tokens; the model's hidden_states [tokens, hidden] of
        the last step -> [tokens, the head's hidden]."""

    def forward(
        self, batch: ForwardBatch, token_ids: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        """By int64 token_ids [tokens], those behind the batch's tokens, and the latter's
        hidden_states [tokens, hidden], as `read` gives them, which for guessed tokens are its own:
        its own [tokens, hidden]. Writes its keys and values where the batch has those of the
        model."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Its hidden_states [rows, hidden] -> fp32 [rows, vocab]."""


class DecoderLayer(nn.Module):
    """One layer; `residual` is the running sum in fp32 that `hidden_states` is yet to be added
    to, None before the first layer."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__()

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class Model(nn.Module):
    """What loading needs to know, whatever the model computes."""

    draft_head: DraftHead | None
    """What guesses tokens from the model's hidden states, where `ModelSpec.drafts` asks for it."""

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__()
        self.spec = spec
        self.context = context
        self.draft_head = None
        self.projections = nn.ModuleList(
            replicated(context, dense.in_features, dense.out_features, bias=dense.bias)
            for dense in (spec.pooling.dense if spec.ends else ())
        )

    @property
    def carried_size(self) -> int:
        """Columns of what this stage of a model reads of the one before (`ForwardBatch.carried`).
        What it hands on to the next one is that stage's."""
        return self.spec.hidden_size

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] of the last layer; of a stage that others follow
        what the next one reads."""
        raise NotImplementedError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What a model that writes text computes: hidden states [rows, hidden_size] of chosen rows
        -> fp32 [rows, vocab_size]."""
        raise NotImplementedError

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """As `compute_logits`, [rows, this rank's part of the vocabulary]."""
        raise NotImplementedError

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        """Pooled hidden states [texts, hidden_size] -> vectors [texts, `PoolingSpec.vector_size`],
        not yet normalized."""
        for layer, dense in zip(self.projections, self.spec.pooling.dense, strict=True):
            pooled = layer(pooled.to(self.context.dtype))
            pooled = pooled.tanh() if dense.activation == "tanh" else pooled
        return pooled

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        """What a model with labels computes: pooled hidden states [texts, hidden_size] -> logits
        [texts, labels]."""
        raise NotImplementedError

    @property
    def encoders(self) -> Encoders:
        """Encoders of the kinds of media that it takes, on the rank that encodes them."""
        return {}

    def reserve(self, max_model_len: int) -> None:
        """Make all that grows with the context now, so that its address stays the same."""
        self.context.rotary.reserve(max_model_len)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights on this rank."""
        return sum(part.nbytes for part in self.modules() if isinstance(part, WeightedLayer))


class CausalLM(Model):
    """Embedding, a stack of `layer_class`, a final norm, and an output head."""

    layer_class: type[DecoderLayer]
    norm_class: type[RMSNorm] | type[CenteredNorm] | type[LayerNorm] = RMSNorm
    """The class of the final norm."""
    draft_head_class: Callable[["CausalLM", DraftHeadSpec], DraftHead]

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        tied = spec.tie_word_embeddings
        if spec.begins or (spec.ends and tied):
            self.embed = VocabTable(context, spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(
            self.layer_class(context, spec, layer, index) for index, layer in enumerate(spec.layers)
        )
        if spec.ends:
            self.norm = self.norm_class(context, spec.hidden_size, spec.norm_eps)
            vocab = (context, spec.vocab_size, spec.hidden_size)
            self.head = self.embed if tied else VocabTable(*vocab)
        if spec.ends and spec.pooling.labels and spec.pooling.answers is None:
            self.score = replicated(context, spec.hidden_size, len(spec.pooling.labels))
        self.taps: LayerTaps | None = None
        if spec.draft_head is not None and spec.drafts:
            if spec.draft_head.eagle3 is not None:
                self.taps = LayerTaps(context, spec.draft_head.eagle3.reads, spec.hidden_size)
            self.draft_head = self.draft_head_class(self, spec.draft_head)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Normalized hidden states [tokens, hidden_size] of the last layer; of a stage that others
        follow the sum behind it, fp32."""
        hidden_states, residual = self.begun(batch)
        for index, layer in enumerate(self.layers):
            if self.taps is not None:
                self.taps.keep(index, hidden_states, residual)
            hidden_states, residual = layer(hidden_states, residual, batch)
            if index < len(batch.layer_embeds):
                residual = residual + batch.layer_embeds[index]
        assert residual is not None
        if self.taps is not None:
            self.taps.keep(len(self.layers), hidden_states, residual)
        if not self.spec.ends:
            return ops.add_to(hidden_states, residual)
        return self.norm.add(hidden_states, residual)[0]

    def begun(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(What the first layer reads [tokens, hidden_size], the fp32 sum that it is yet to be
        added to): embeddings and none, or nothing and what the stage before has computed."""
        carried = batch.carried
        if carried is None:
            return self.embedded(batch), None
        self.context.adapters.slots = batch.adapters
        return torch.zeros_like(carried, dtype=self.context.dtype), carried

    def embedded(self, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, hidden_size]: what the first layer reads, pictures included. From here on layers
        add what the batch's adapters make of it."""
        self.context.adapters.slots = batch.adapters
        hidden_states = self.embed_tokens(batch.token_ids)
        if batch.input_embeds is None or batch.embed_rows is None:
            return hidden_states
        given = batch.input_embeds.to(hidden_states.dtype)
        return torch.where(batch.embed_rows[:, None], given, hidden_states)

    def embed_tokens(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] -> [tokens, hidden_size]."""
        return _scaled(self.embed(token_ids), self.spec.embedding_scale)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = self.partial_logits(hidden_states)
        return self.context.parallel.gathered(logits, self.spec.vocab_size)

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        logits = self.head.partial_logits(_scaled(hidden_states, self.spec.logit_scale))
        cap = self.spec.logit_cap
        return logits if cap is None else ops.soft_cap(logits, cap)

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        if self.spec.pooling.answers is None:
            out: torch.Tensor = self.score(pooled)
            return out
        yes, no = self.spec.pooling.answers
        logits = self.compute_logits(pooled)
        scores = logits[:, yes] if no is None else logits[:, yes] - logits[:, no]
        return scores[:, None]


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else ops.scale(x, factor)
