"""Which part of a sound each token of its text is about, by the attention of some heads
(transformers, generation_whisper.py)."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.messages import Alignment
from pagoda.layers.watched import Watched
from pagoda.runtime.device import to_tensor
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.states import RequestStates
from pagoda.runtime.steps.prepared import PreparedStep

_MEDIAN = 7
"""Tokens of sound over which weights are smoothed."""
_EXCHANGES = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3),
    (3, 4),
)  # fmt: skip
"""What brings the median of seven to their middle (Devillard, Fast median search, 1998)."""


def watched_heads(step: PreparedStep, states: RequestStates, device: torch.device) -> Watched:
    """What the step's requests want to see."""
    plan = step.plan
    places = np.flatnonzero(step.flags & Needs.ALIGN).tolist()
    heads = {place: states.alignments[int(plan.rows[place])].heads for place in places}
    owners = np.repeat(np.arange(len(plan.rows)), plan.ends - plan.starts)
    return Watched(heads, to_tensor(owners, device))


@dataclass
class Aligner:
    """Keeps what was found of texts until their last step."""

    _earlier: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """By row: [heads, tokens, tokens of sound] of each step."""

    def add(
        self, row: int, start: int, found: dict[tuple[int, int], torch.Tensor] | None,
        alignment: Alignment,
    ) -> None:  # fmt: skip
        """Take in what a step that begins with token `start` found, as `Watched` has it."""
        if not start:
            self._earlier[row] = []
        if found:
            weights = torch.stack([found[head] for head in alignment.heads])
            self._earlier.setdefault(row, []).append(weights)

    def take(self, row: int, alignment: Alignment) -> npt.NDArray[np.float32]:
        """[tokens behind the skipped ones, frames]: how much each token is about each part of the
        sound, in deviations from what the others are about it."""
        weights = torch.cat(self._earlier.pop(row), 1)
        weights = weights[:, alignment.skipped :, : alignment.frames]
        total = torch.zeros_like(weights[0])
        for each in weights:  # one at a time, for smoothing takes several times its memory
            total += _smoothed(_deviations(each))
        found: npt.NDArray[np.float32] = (total / len(weights)).cpu().numpy()
        return found


def _deviations(weights: torch.Tensor) -> torch.Tensor:
    """How far weights [tokens, places] are from the tokens' mean, in standard deviations."""
    deviation, mean = torch.std_mean(weights, dim=0, correction=0, keepdim=True)
    # A single token deviates from nothing.
    return torch.where(deviation > 0, (weights - mean) / deviation, 0.0)


def _smoothed(scores: torch.Tensor) -> torch.Tensor:
    """The medians around each place of the last dimension of two, which is mirrored at its ends."""
    half = _MEDIAN // 2
    if scores.shape[-1] <= half:
        return scores
    padded = torch.nn.functional.pad(scores, (half, half), mode="reflect")
    # Whole rows are compared: torch's median of each seven numbers takes several times as long.
    lines = list(padded.unfold(-1, scores.shape[-1], 1).unbind(-2))
    for low, high in _EXCHANGES:
        one, other = lines[low], lines[high]
        lines[low], lines[high] = torch.minimum(one, other), torch.maximum(one, other)
    return lines[half]
