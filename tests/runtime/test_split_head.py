"""The most likely token of a vocabulary that ranks share is that of one device, to the bit."""

import pytest
import torch

from pagoda.kernels import ops
from pagoda.layers.context import Parallel
from pagoda.runtime.sampling.head import SplitHead
from tests.models.gloo_ranks import on_ranks

VOCAB = 211


class Identity:
    """Gives one rank's part of the logits [rows, vocab] that it takes for hidden states."""

    def __init__(self, parallel: Parallel):
        self._part = parallel.share_rows(VOCAB)

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states[:, self._part].contiguous()


@pytest.mark.parametrize("size", [2, 4])
def test_first_max_is_that_of_one_device(size):
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[0, [17, 60, 120, 210]] = 9.0  # one for each rank of four: the lowest id counts
    logits[1, [120, 210]] = 9.0
    logits[2, 210] = 9.0  # the shorter last part's
    logits[3] = -torch.inf
    logits[4, :200] = -torch.inf
    logits[5] = 0.0
    logits[6, 150] = torch.inf
    logits[7, 150] = torch.nan
    values, ids = ops.first_max(logits)
    assert ids[:3].tolist() == [17, 120, 210]

    def run(parallel: Parallel) -> tuple[torch.Tensor, torch.Tensor]:
        head = SplitHead(Identity(parallel), parallel, VOCAB)
        best = head.first_max(head.logits(logits))
        return best.values, best.ids

    for found, tokens in on_ranks(size, run):
        assert torch.equal(found[:7], values[:7]) and found[7].isnan()
        assert torch.equal(tokens[:7], ids[:7])
