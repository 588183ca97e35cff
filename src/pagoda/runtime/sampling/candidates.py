"""What is left of a row of logits while samplers follow each other, and what each of them does.

The samplers are llama.cpp's, and their numbers mean what they mean there. Where two tokens are
equal, the lower id comes first.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from pagoda.core.sampling import SamplingParams
from pagoda.kernels import ops
from pagoda.runtime.sampling.near_top import keep_near_top

_MIROSTAT_TOKENS = 100
"""Mirostat 1 estimates by so many how fast probabilities fall; llama.cpp's number."""


class Candidates:
    """Tokens that may still be drawn, those with a logit of -inf among them."""

    def __init__(self, logits: torch.Tensor):
        """All tokens of fp32 logits [vocab], which stay as they are."""
        self.logits = logits.clone()
        """fp32 [candidates]."""
        self.ids = torch.arange(len(logits), device=logits.device)
        self.vocab_size = len(logits)
        self._ordered = False

    def __len__(self) -> int:
        return len(self.logits)

    def order(self) -> None:
        """Have the most likely first."""
        if not self._ordered:
            self.logits, places = self.logits.sort(descending=True, stable=True)
            self.ids = self.ids[places]
            self._ordered = True

    def keep_first(self, count: int) -> None:
        """Keep so many of the most likely, at least one."""
        count = max(count, 1)
        if not self._ordered and count < len(self):
            logits, places = ops.top_tokens(self.logits[None], count)
            self.logits, self.ids, self._ordered = logits[0], self.ids[places[0]], True
        self.logits, self.ids = self.logits[:count], self.ids[:count]

    def keep(self, places: torch.Tensor) -> None:
        """Keep those at int64 places [kept]."""
        self.logits, self.ids, self._ordered = self.logits[places], self.ids[places], False

    def drop_first(self, count: int) -> None:
        self.logits, self.ids = self.logits[count:], self.ids[count:]

    def shares(self) -> torch.Tensor:
        """fp32 [candidates]: their probabilities."""
        return self.logits.softmax(dim=0)

    def change(self, effect: Callable[[torch.Tensor], None]) -> None:
        """Have `effect` change a whole row of logits [1, vocab] in place, and take over what it
        did to these."""
        row = self.row()[None]
        effect(row)
        self.logits, self._ordered = row[0, self.ids], False

    def row(self) -> torch.Tensor:
        """fp32 [vocab]: -inf for what was left out."""
        row = torch.full((self.vocab_size,), -torch.inf, device=self.logits.device)
        row[self.ids] = self.logits
        return row


def top_n_sigma(left: Candidates, sampling: SamplingParams) -> None:
    width = np.array([sampling.top_n_sigma], np.float32)
    keep_near_top(left.logits[None], left.logits.max()[None], width)


def top_k(left: Candidates, sampling: SamplingParams) -> None:
    left.keep_first(sampling.top_k)


def typical(left: Candidates, sampling: SamplingParams) -> None:
    """Locally typical sampling (arXiv:2202.00666)."""
    left.order()
    shares = left.shares()
    entropy = torch.special.entr(shares).sum()
    _, places = (-shares.log() - entropy).abs().sort(stable=True)
    beyond = shares[places].cumsum(dim=0) > sampling.typical_p
    left.keep(places[: _reached(beyond, sampling.min_keep)])


def top_p(left: Candidates, sampling: SamplingParams) -> None:
    left.order()
    share = float(np.float32(sampling.top_p))  # as the shares are, which may add up to just it
    left.keep_first(_reached(left.shares().cumsum(dim=0) >= share, sampling.min_keep))


def min_p(left: Candidates, sampling: SamplingParams) -> None:
    least = left.logits.max() + math.log(sampling.min_p)
    left.keep_first(max(int((left.logits >= least).sum()), sampling.min_keep))


def xtc(left: Candidates, sampling: SamplingParams) -> None:
    """Exclude top choices: of the tokens that are probable enough only the least is kept
    (https://github.com/oobabooga/text-generation-webui/pull/6335). Whether it comes to that this
    time is the caller's affair."""
    left.order()
    excess = int((left.shares() >= sampling.xtc_threshold).sum()) - 1
    if excess > 0 and len(left) - excess >= sampling.min_keep:
        left.drop_first(excess)


def temperature(left: Candidates, sampling: SamplingParams) -> None:
    """With `dynatemp_range` the temperature lies the higher the less certain the model is."""
    degree = sampling.temperature
    if sampling.dynatemp_range:
        if len(left) < 2:
            return
        shares = left.shares()
        entropy = float(torch.special.entr(shares).sum()) / math.log(len(left))
        low = max(0.0, degree - sampling.dynatemp_range)
        high = degree + sampling.dynatemp_range
        degree = low + (high - low) * max(entropy, 0.0) ** sampling.dynatemp_exponent
    if degree < 1e-5:
        left.keep_first(1)
    else:
        left.logits = left.logits / degree


CUTS: Mapping[str, Callable[[Candidates, SamplingParams], None]] = {
    "top_n_sigma": top_n_sigma, "top_k": top_k, "typ_p": typical, "top_p": top_p, "min_p": min_p,
    "xtc": xtc, "temperature": temperature,
}  # fmt: skip
"""Samplers that need nothing but the logits, by their names in SAMPLERS."""


class Surprise(NamedTuple):
    """What mirostat lets pass, in bits."""

    most: float
    vocab_size: int


def mirostat(left: Candidates, version: int, surprise: Surprise) -> None:
    """Leave out what would surprise too much (arXiv:2007.14966)."""
    left.order()
    shares = left.shares()
    if version == 2:
        left.keep_first(int((-shares.log2() <= surprise.most).sum()))
    else:
        left.keep_first(_zipf_count(shares, surprise))


def _zipf_count(shares: torch.Tensor, surprise: Surprise) -> int:
    """How many of the most likely have the surprise asked for, if shares follow Zipf's law as
    the first of them do."""
    first = shares[:_MIROSTAT_TOKENS].double().cpu().numpy()
    first = first[first > 0]
    if len(first) < 2:
        return 1
    ranks = np.arange(1, len(first) + 1)
    steps = np.log(ranks[1:] / ranks[:-1])
    exponent = float((steps * np.log(first[:-1] / first[1:])).sum() / (steps**2).sum())
    excess = exponent - 1
    with np.errstate(all="ignore"):
        spread = 1 - np.power(float(surprise.vocab_size), -excess)
        count = np.power(excess * np.exp2(surprise.most) / spread, 1 / np.float64(exponent))
    return int(min(count, len(shares))) if count > 1 else 1


def _reached(reached: torch.Tensor, min_keep: int) -> int:
    """How many candidates there are up to the first that has `reached` its end, at least
    `min_keep`."""
    if not bool(reached[-1]):
        return len(reached)
    return min(max(int(reached.int().argmax()) + 1, min_keep), len(reached))
