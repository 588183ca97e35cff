"""From hidden states to one vector, or a classifier's logits, per text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from pagoda.arch.spec import PoolingMethod

Tensor = torch.Tensor
Pooled = npt.NDArray[np.float32]

# All vectors of a text's tokens are held until its last step, and then sent as one message.
_MOST_BYTES = 256 << 20
_ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class Pooler:
    method: PoolingMethod
    classify: Callable[[Tensor], Tensor] | None
    """Logits [texts, labels] of pooled hidden states; None for a model without a classifier."""
    project: Callable[[Tensor], Tensor] | None = None
    """Vectors [texts, size] of pooled hidden states; None where these are the vectors."""
    _earlier: dict[int, Tensor] = field(default_factory=dict)
    """By row: what is kept of a text's earlier steps."""

    def refusal(self, task: str, num_tokens: int, size: int) -> str | None:
        """Why the model cannot do a task with a text of so many tokens, each a vector of `size`."""
        if task == "classify" and self.classify is None:
            return "The model has no classifier; ask for task 'embed'."
        if task == "token_embed" and 4 * num_tokens * size > _MOST_BYTES:
            most = _MOST_BYTES // (4 * size)
            return f"The vectors of at most {most} tokens are given; this text has {num_tokens}."
        return None

    def add(self, row: int, task: str, start: int, states: Tensor) -> None:
        """Take in the hidden states [tokens, hidden] of a text's tokens from `start` on. A text
        that begins anew, after a preemption or in a row that another has left, is a new one."""
        earlier = self._earlier.get(row) if start else None
        if task == "token_embed":
            states = states.float()
            kept = states if earlier is None else torch.cat([earlier, states])
        elif self.method == "mean":
            kept = _sum(earlier, states)
        else:
            rows = states if earlier is None else torch.cat([earlier, states])
            kept = _representative(self.method, rows)
        self._earlier[row] = kept.clone()  # the next step's states take the place of these

    def pool(self, task: str, rows: Sequence[int], counts: Sequence[int]) -> list[Pooled]:
        """What `task` makes of the texts in `rows`, all of whose `counts` tokens were added. Shapes
        as in RequestResult."""
        texts = [self._earlier.pop(row) for row in rows]
        if task == "token_embed":
            return [states.cpu().numpy() for states in texts]
        if self.method == "mean":
            texts = [total / count for total, count in zip(texts, counts, strict=True)]
        pooled = torch.cat(texts).to(torch.float32 if self.method == "mean" else texts[0].dtype)
        if task == "classify":
            assert self.classify is not None  # or `refusal` said so
            pooled = self.classify(pooled)
        elif self.project is not None:
            pooled = self.project(pooled)
        return list(pooled.float().cpu().numpy())


def _representative(method: PoolingMethod, states: Tensor) -> Tensor:
    """[1, hidden]: all that these states are pooled to."""
    match method:
        case "cls":
            return states[:1]
        case "max":
            return states.amax(0, keepdim=True)
        case _:
            return states[-1:]


def _sum(total: Tensor | None, states: Tensor) -> Tensor:
    """fp64 [1, hidden]: `total` and all rows, added one by one. So a text's vector does not change
    with the steps that its tokens come in, nor with its neighbours."""
    for part in states.double().split(_ROWS_AT_ONCE):
        rows = part if total is None else torch.cat([total, part])
        total = rows.cumsum(0)[-1:]
    assert total is not None  # a step of a text has tokens
    return total
