"""From hidden states to one vector, or a classifier's logits, per text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagoda.arch.spec import PoolingMethod

Tensor = torch.Tensor


@dataclass(frozen=True)
class Pooler:
    method: PoolingMethod
    classify: Callable[[Tensor], Tensor] | None
    """Logits [texts, labels] of pooled hidden states; None for a model without a classifier."""
    whole: bool
    """All rows of a text come in one step: the model is an encoder."""

    def refusal(self, task: str) -> str | None:
        """Why the model cannot do a task."""
        if task == "classify" and self.classify is None:
            return "The model has no classifier; ask for task 'embed'."
        if task == "token_embed" and not self.whole:
            return "A model that writes text gives one vector per text; ask for task 'embed'."
        return None

    def pool(self, task: str, texts: Sequence[Tensor]) -> list[npt.NDArray[np.float32]]:
        """What `task` makes of each text's hidden states [tokens, hidden]; of a text that came in
        several steps the last rows. Shapes as in RequestResult."""
        if task == "token_embed":
            return [rows.float().cpu().numpy() for rows in texts]
        # One by one: sums that a text's neighbours have no part in.
        pooled = torch.stack([_pooled(self.method, rows) for rows in texts])
        if task == "classify":
            assert self.classify is not None  # or `refusal` said so
            pooled = self.classify(pooled)
        return list(pooled.float().cpu().numpy())


def _pooled(method: PoolingMethod, rows: Tensor) -> Tensor:
    match method:
        case "cls":
            return rows[0]
        case "last":
            return rows[-1]
        case "max":
            return rows.amax(0)
        case "mean":
            return rows.float().mean(0)
