"""DRY: tokens that would make a repetition longer become less likely.

The definition is https://github.com/oobabooga/text-generation-webui/pull/5677, details are
llama.cpp's: what is compared ends at the last sequence breaker, and a breaker is never penalized.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.sampling import SamplingParams
from pagoda.runtime.device import to_tensor

_LARGEST_LOG = 88.7228391  # of a float: beyond it llama.cpp lets penalties grow no further


class Breakers:
    """Token sequences across which nothing counts as a repetition."""

    def __init__(self, sequences: Sequence[Sequence[int]]):
        self._tails: dict[int, list[list[int]]] = {}
        """Tokens that begin a sequence, with what must follow."""
        for head, *tail in sequences:
            self._tails.setdefault(head, []).append(tail)

    def is_one(self, token: int) -> bool:
        return [] in self._tails.get(token, ())

    def distance(self, latest: list[int]) -> int:
        """Tokens behind the last sequence in `latest`, whose first token is the newest."""
        for place, token in enumerate(latest):
            lengths = [
                len(tail)
                for tail in self._tails.get(token, ())
                if len(tail) <= place and latest[place - len(tail) : place] == tail[::-1]
            ]
            if lengths:
                return place - max(lengths)
        return len(latest)


def repeats(latest: list[int], longest: int) -> list[int]:
    """At each place of `latest`: how many tokens from there on are those at its beginning, up to
    `longest` (the Z function, in linear time)."""
    counts = [0] * len(latest)
    start = end = 0  # of the stretch known to be equal that reaches furthest
    for place in range(1, len(latest)):
        count = min(counts[place - start], end - place) if place < end else 0
        if place + count >= end:
            while place + count < len(latest) and latest[count] == latest[place + count]:
                count += 1
            start, end = place, place + count
        counts[place] = count
    return [min(count, longest) for count in counts]


def penalties(
    tokens: npt.NDArray[np.int32], sampling: SamplingParams, breakers: Breakers
) -> dict[int, float]:
    """What each token's logit loses behind these tokens of prompt and output."""
    last_n, allowed = sampling.dry_penalty_last_n, sampling.dry_allowed_length
    latest = (tokens if last_n < 0 else tokens[max(len(tokens) - last_n, 0) :])[::-1].tolist()
    longest = breakers.distance(latest)
    if len(latest) <= allowed or longest < allowed:
        return {}
    lengths: dict[int, int] = {}
    counts = repeats(latest, longest)
    for place in range(1, len(latest)):
        if counts[place] >= allowed:
            token = latest[place - 1]
            lengths[token] = max(counts[place], lengths.get(token, 0))
    base = sampling.dry_base
    most = int(_LARGEST_LOG / math.log(base)) if base > 1.000001 else 0
    return {
        token: sampling.dry_multiplier
        * base ** (min(length - allowed, most) if most else length - allowed)
        for token, length in lengths.items()
        if not breakers.is_one(token)
    }


def apply_dry(
    logits: torch.Tensor,
    tokens: npt.NDArray[np.int32],
    sampling: SamplingParams,
    breakers: Breakers,
) -> None:
    """Change fp32 logits [1, vocab] in place, as they follow `tokens`."""
    lost = penalties(tokens, sampling, breakers)
    if lost:
        ids = to_tensor(np.fromiter(lost, np.int64, len(lost)), logits.device)
        amounts = np.fromiter(lost.values(), np.float64, len(lost)).astype(np.float32)
        logits[0, ids] -= to_tensor(amounts, logits.device)
