"""Chains of samplers in a request's own order.

Most requests are served by the sampler of all rows at once, in one order. One that asks for another
order, or for a sampler that this has not, has a chain: its row of logits becomes what the chain has
left of it, from which it is drawn like any other. A chain sees its own row, the request's tokens,
its seed and the position, so nothing depends on what shares the batch, nor on what was guessed.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.messages import AddRequest
from pagoda.kernels.ref.noise import splitmix
from pagoda.runtime.sampling.candidates import CUTS, Candidates, Surprise, mirostat
from pagoda.runtime.sampling.dry import Breakers, apply_dry

_XTC_NOISE = np.uint64(1 << 40)
"""Which number of a position's stream says whether XTC does something: far behind those that the
draw takes."""


class Chain:
    """The samplers of one request."""

    def __init__(self, request: AddRequest, seed: int):
        self._sampling = request.sampling
        self._order = request.sampling.chain or []
        self._seed = np.array([seed], np.uint64)
        self._breakers = Breakers(request.dry_breaker_ids)
        self._surprise: dict[int, float] = {}
        """By position: what mirostat lets pass there, in bits. A position that is sampled again
        is sampled as it was."""

    def apply(
        self,
        logits: torch.Tensor,
        position: int,
        tokens: npt.NDArray[np.int32],
        penalize: Callable[[torch.Tensor], None],
        draw: Callable[[torch.Tensor], int],
    ) -> None:
        """Change fp32 logits [vocab], which follow all of `tokens`, to what is drawn from.

        `penalize` applies the request's penalties to logits [1, vocab]; `draw` says which token
        will be drawn from such. A row without a finite largest logit stays as it is: it has no
        token.
        """
        if not bool(logits.max().isfinite()):
            return
        sampling, left = self._sampling, Candidates(logits)
        for sampler in self._order:
            if sampler == "penalties":
                left.change(penalize)
            elif sampler == "dry":
                left.change(lambda row: apply_dry(row, tokens, sampling, self._breakers))
            elif sampler != "xtc" or self._xtc_happens(position):
                CUTS[sampler](left, sampling)
        if sampling.mirostat and not sampling.greedy:
            self._keep_surprise(left, position, draw)
        logits.copy_(left.row())

    def _xtc_happens(self, position: int) -> bool:
        mixed = splitmix(self._seed, np.zeros(1, np.uint64))
        stream = splitmix(mixed, np.array([position], np.uint64))
        number = splitmix(stream, np.array([_XTC_NOISE]))
        chance = float(number[0] >> np.uint64(11)) * 2.0**-53
        return chance <= self._sampling.xtc_probability

    def _keep_surprise(
        self, left: Candidates, position: int, draw: Callable[[torch.Tensor], int]
    ) -> None:
        """Leave out what surprises too much, and learn from the token that will be drawn."""
        sampling = self._sampling
        most = self._surprise.get(position, 2 * sampling.mirostat_tau)
        mirostat(left, sampling.mirostat, Surprise(most, left.vocab_size))
        row = left.row()
        token = draw(row[None])
        surprise = -math.log2(max(float(row.softmax(dim=0)[token]), 1e-30))
        error = surprise - sampling.mirostat_tau
        self._surprise[position + 1] = most - sampling.mirostat_eta * error
