"""From hidden states to logits and the most likely tokens, on one device and on several."""

from dataclasses import dataclass

import torch

from pagoda.kernels import ops
from pagoda.layers.context import Parallel
from pagoda.runtime.model import Model
from pagoda.runtime.sampling.sampler import FirstMax


@dataclass(frozen=True)
class OutputHead:
    """The output head of a model that this device holds whole."""

    model: Model

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> fp32 [rows, vocab]."""
        return self.model.compute_logits(hidden_states)

    def first_max(self, logits: torch.Tensor) -> FirstMax:
        """The largest of each row of this head's `logits` [rows, vocab], and its token."""
        return FirstMax(*ops.first_max(logits))


@dataclass(frozen=True)
class SplitHead(OutputHead):
    """The output head of ranks that share a vocabulary: each has the logits of its part.

    All ranks call `first_max` together.
    """

    parallel: Parallel
    vocab_size: int

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> fp32 [rows, this rank's part of the vocabulary]."""
        return self.model.partial_logits(hidden_states)

    def first_max(self, logits: torch.Tensor) -> FirstMax:
        """Over all ranks' parts [rows, part], as one device has it: the lowest id of equals. Each
        rank sends a value and an id for each row."""
        values, ids = ops.first_max(logits)
        ids = ids + self.parallel.share_rows(self.vocab_size).start
        # The bits of an int32, which nothing computes with before they are an int32 again.
        pairs = torch.stack((values, ids.int().view(torch.float32)), dim=1)
        size = self.parallel.size
        found = self.parallel.gathered(pairs, 2 * size).view(-1, size, 2)
        # Ranks lie in the order of their ids, so that the first one of equals has the lowest.
        values, ranks = ops.first_max(found[:, :, 0].contiguous())
        ids = found[:, :, 1].contiguous().view(torch.int32).gather(1, ranks[:, None])
        return FirstMax(values, ids[:, 0].long())
