"""Whisper (arXiv 2212.04356): an encoder of sound, and a decoder that attends to what was heard."""

from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.layers.attention import Attention
from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.layers.context import LayerContext
from pagoda.layers.embedding import VocabTable
from pagoda.layers.heard_attention import HeardAttention
from pagoda.layers.hearing import AudioTower
from pagoda.layers.mlp import Mlp
from pagoda.layers.norm import LayerNorm
from pagoda.models.base import CausalLM, DecoderLayer, Encoders
from pagoda.quant.base import ShardSource

# Constants of steps with more tokens are made in each.
_MOST_TOKENS = 1 << 16


class TextPositions(VocabTable):
    """Learned positions [positions, hidden] of a text that begins behind `first` tokens, which have
    rows too: those cost a replayed step less than a difference."""

    def __init__(self, context: LayerContext, first: int, count: int, hidden_size: int):
        super().__init__(context, count, hidden_size)
        self._first = first

    def create(self, storages: tuple[str, ...]) -> None:
        self.make(storages, (self._first, self.vocab_size))

    def _load(self, source: ShardSource) -> None:
        def repeated() -> torch.Tensor:
            return source.read()[:1].repeat(self._first, 1)

        self.format.load(0, replace(source, out_features=self._first, read=repeated))
        self.format.load(1, source)


class WhisperLayer(DecoderLayer):
    """x + attention(norm(x)), to the text or to the sound; then, if it has one,
    x + mlp(norm(x))."""

    def __init__(self, context: LayerContext, spec: ModelSpec, layer: LayerSpec, index: int):
        super().__init__(context, spec, layer, index)
        assert isinstance(layer.mixer, AttentionSpec)
        mixer, hidden, eps = layer.mixer, spec.hidden_size, spec.norm_eps
        self.attention_norm = LayerNorm(context, hidden, eps)
        self.attention: Attention | HeardAttention
        if mixer.heard is not None:
            self.attention = HeardAttention(context, mixer, hidden, index)
        else:
            self.attention = Attention(context, mixer, hidden, eps, index)
        self.mlp: Mlp | None = None
        if layer.mlp is not None:
            self.mlp_norm = LayerNorm(context, hidden, eps)
            self.mlp = Mlp(context, layer.mlp, hidden)

    def through(
        self, x: torch.Tensor, residual: torch.Tensor, batch: ForwardBatch, ends: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `forward`, of a sum that there is; `ends` as `HeardAttention` has them."""
        x, residual = self.attention_norm.add(x, residual)
        if isinstance(self.attention, HeardAttention):
            x = self.attention(x, batch, ends)
        else:
            x = self.attention(x, batch)
        if self.mlp is not None:
            x, residual = self.mlp_norm.add(x, residual)
            x = self.mlp(x)
        return x, residual


class Whisper(CausalLM):
    layer_class = WhisperLayer
    norm_class = LayerNorm

    def __init__(self, spec: ModelSpec, context: LayerContext):
        super().__init__(spec, context)
        assert spec.audio is not None
        self.audio = AudioTower(context, spec.audio, spec.hidden_size)
        self.heard = spec.audio.max_tokens
        count = spec.max_position - self.heard
        self.positions = TextPositions(context, self.heard, count, spec.hidden_size)
        self._make_ends = partial(
            torch.full, fill_value=self.heard, dtype=torch.int32, device=context.device
        )
        self._ends = self._make_ends((_MOST_TOKENS,))

    @property
    def encoders(self) -> Encoders:
        return {"audio": self.audio.slices}

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Normalized hidden states [tokens, hidden_size] of the last layer; those of a sound's
        tokens are zeros."""
        if batch.embed_rows is None:
            return self._write(batch)
        assert batch.input_embeds is not None
        (rows,) = batch.embed_rows.nonzero(as_tuple=True)
        embeddings = batch.input_embeds[rows].to(self.context.dtype)
        for layer in self.layers:
            attention = cast(WhisperLayer, layer).attention
            if isinstance(attention, HeardAttention):
                attention.hear(embeddings, rows, batch)
        written = embeddings.new_zeros((batch.num_tokens, self.spec.hidden_size))
        (texts,) = (~batch.embed_rows).nonzero(as_tuple=True)
        if len(texts):
            written[texts] = self._write(_chosen(batch, texts)).to(written.dtype)
        return written

    def _write(self, batch: ForwardBatch) -> torch.Tensor:
        count = batch.num_tokens
        ends = self._ends if count <= _MOST_TOKENS else self._make_ends((count,))
        x, residual = self.embedded(batch), self.positions(batch.positions).float()
        for layer in self.layers:
            x, residual = cast(WhisperLayer, layer).through(x, residual, batch, ends)
        return self.norm.add(x, residual)[0]


def _chosen(batch: ForwardBatch, rows: torch.Tensor) -> ForwardBatch:
    """A step of these rows (int64, rising) alone, and of the requests that have some."""
    starts = batch.query_start.long()
    before = torch.searchsorted(rows, starts)
    counts = before.diff()
    (reqs,) = counts.nonzero(as_tuple=True)
    query_start = torch.nn.functional.pad(counts[reqs].cumsum(0), (1, 0)).int()
    groups: list[GroupInputs | StateInputs] = [
        GroupInputs(group.block_table[reqs], group.slot_mapping[rows])
        for group in batch.groups
        if isinstance(group, GroupInputs)
    ]
    kv_lens = batch.kv_lens[reqs]
    return replace(
        batch,
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        query_start=query_start,
        kv_lens=kv_lens,
        max_query_len=int(counts.max()),
        groups=groups,
        input_embeds=None,
        embed_rows=None,
        layer_embeds=(),
        adapters=None if batch.adapters is None else batch.adapters[rows],
        watched=None if batch.watched is None else batch.watched.of(rows),
        host_query_start=np.asarray(query_start.cpu()),
        host_kv_lens=np.asarray(kv_lens.cpu()),
        rotary_rows={},
        plans={},
    )
