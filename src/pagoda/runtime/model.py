"""What a model offers the runner."""

from collections.abc import Generator
from typing import Protocol

import torch

from pagoda.layers.batch import ForwardBatch


class Model(Protocol):
    """`compute_logits` if it writes text, `classify` if it has labels, `image_slices` if it sees
    pictures."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [num_tokens, hidden]."""
        ...

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """fp32 logits [rows, vocab] of chosen rows."""
        ...

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        """Logits [texts, labels] of texts' pooled hidden states."""
        ...

    def reserve(self, max_model_len: int) -> None:
        """Make what grows with the context now."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        ...

    def image_slices(
        self, patches: torch.Tensor, grid: tuple[int, int, int]
    ) -> Generator[None, None, torch.Tensor]:
        """fp32 patches [patches, values] of a picture of `grid` (frames, rows and columns of
        patches) -> [1 + layers, tokens, hidden]: the embeddings of its tokens, and what is added
        to them behind each of the first layers. In slices of a few milliseconds, if it can."""
        ...
