"""The token table: embeddings of ids, and logits of hidden states."""

from dataclasses import replace

import torch

from pagoda.layers.context import LayerContext
from pagoda.layers.loading import LoadTarget, WeightedLayer
from pagoda.quant.base import LinearFormat, ShardSource
from pagoda.quant.select import linear_format


class VocabTable(WeightedLayer):
    """[vocab_size, hidden_size], split on rows over ranks. A tied output head is the same table."""

    params = ("weight",)
    format: LinearFormat

    def __init__(
        self, context: LayerContext, vocab_size: int, hidden_size: int, num_ids: int | None = None
    ):
        """`num_ids`: how many tokens there are, where that is more; those behind the table have its
        first row."""
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self._context = context
        self._part = context.parallel.share_rows(vocab_size)
        self._missing = max(0, (num_ids or vocab_size) - vocab_size)

    def targets(self, param: str) -> tuple[LoadTarget, ...]:
        shape = (self.vocab_size, self.hidden_size)
        return (LoadTarget(shape, self._load, rows=(self._part,)),)

    def create(self, storages: tuple[str, ...]) -> None:
        size = self._part.stop - self._part.start
        # Rows that are there twice cost a replayed step less than a look at each id.
        self.make(storages, (size, self._missing) if self._repeats else (size,))

    def make(self, storages: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        """Room for shards of so many rows, stored alike."""
        context = self._context
        self.format = linear_format(storages, context.device, packed=context.packed)
        stored = storages * len(sizes)
        self.format.create(sizes, stored, self.hidden_size, context.dtype, context.device)

    @property
    def _repeats(self) -> bool:
        return self._missing > 0 and self._context.parallel.size == 1

    def _load(self, source: ShardSource) -> None:
        self.format.load(0, source)
        if self._repeats:
            first = replace(
                source,
                out_features=self._missing,
                read=lambda: source.read()[:1].repeat(self._missing, 1),
            )
            self.format.load(1, first)

    def finalize(self) -> None:
        self.format.finalize()

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] -> [tokens, hidden_size]."""
        if self._context.parallel.size == 1:
            return self.format.rows(token_ids)
        if self._missing:
            token_ids = torch.where(token_ids < self.vocab_size, token_ids, 0)
        local = token_ids - self._part.start
        mine = (local >= 0) & (token_ids < self._part.stop)
        rows = self.format.rows(torch.where(mine, local, 0))
        return self._context.parallel.summed(rows.masked_fill(~mine[:, None], 0))

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> fp32 [rows, vocab_size], gathered from all ranks."""
        part = self.partial_logits(hidden_states)
        return self._context.parallel.gathered(part, self.vocab_size)

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> fp32 [rows, this rank's part of the vocabulary]."""
        return self.format.apply(hidden_states, out_dtype=torch.float32)

    @property
    def nbytes(self) -> int:
        return self.format.nbytes
