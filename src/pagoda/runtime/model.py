"""What a model offers the runner."""

from typing import Protocol

import torch

from pagoda.arch.spec import ModelSpec
from pagoda.layers.batch import ForwardBatch
from pagoda.models.base import Encoders


class Model(Protocol):
    """`compute_logits` if it writes text, `classify` if it has labels, `project` if linear layers
    stand behind its pooling, `encoders` if it takes media."""

    @property
    def spec(self) -> ModelSpec:
        """What it is, or which stage of what."""
        ...

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [num_tokens, hidden]."""
        ...

    @property
    def carried_size(self) -> int:
        """As `models.base.Model` has it."""
        ...

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """fp32 logits [rows, vocab] of chosen rows."""
        ...

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """As `compute_logits`, of the part of the vocabulary [rows, part] that this rank holds."""
        ...

    def classify(self, pooled: torch.Tensor) -> torch.Tensor:
        """Logits [texts, labels] of texts' pooled hidden states."""
        ...

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        """Vectors [texts, size] of texts' pooled hidden states."""
        ...

    def reserve(self, max_model_len: int) -> None:
        """Make what grows with the context now."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        ...

    @property
    def encoders(self) -> Encoders:
        """Encoders of media, by kind."""
        ...
