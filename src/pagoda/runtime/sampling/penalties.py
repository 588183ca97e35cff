"""Repetition, presence and frequency penalties, from counts that follow each token."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from pagoda.runtime.device import to_tensor

_NAMES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


class TokenCounts:
    """How often a request generated each token; prompt tokens are known, but count as 0."""

    def __init__(self, prompt_token_ids: npt.NDArray[np.int32]):
        unique = np.unique(prompt_token_ids)
        self.num_prompt = len(unique)
        self._size = len(unique)
        self._ids = np.zeros(len(unique) + 64, np.int64)
        self._ids[: len(unique)] = unique
        self._counts = np.zeros(len(self._ids), np.float32)
        self._places = {token: place for place, token in enumerate(unique.tolist())}

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: self._size]

    def add(self, token_ids: Iterable[int]) -> None:
        for token in token_ids:
            place = self._places.get(token)
            if place is None:
                place = self._places[token] = self._new_place(token)
            self._counts[place] += 1

    def remove(self, token_ids: Iterable[int]) -> None:
        """Take back tokens that were added."""
        for token in token_ids:
            self._counts[self._places[token]] -= 1

    def _new_place(self, token: int) -> int:
        place = self._size
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._size = place + 1
        return place


def apply_penalties(
    logits: torch.Tensor,
    entries: Iterable[tuple[int, TokenCounts, npt.NDArray[np.int32]]],
    params: np.ndarray,
) -> None:
    """Change rows of logits [rows, vocab] in place; `params` has a record per logits row.

    Each entry is a row, its request's counts and the drafts that come on top of them. Repetition
    (CTRL, arXiv:1909.05858) looks at prompt and output; presence and frequency, as OpenAI defines
    them, at the output.
    """
    rows, ids, counts, known = [], [], [], []
    for row, seen, drafts in entries:
        seen.add(drafts.tolist())
        rows.append(row)
        ids.append(seen.ids.copy())
        counts.append(seen.counts.copy())
        known.append(np.arange(len(seen.ids)) < seen.num_prompt)
        seen.remove(drafts.tolist())
    if not rows:
        return
    where = np.repeat(np.array(rows, np.int64), [len(part) for part in ids])
    factors = [to_tensor(params[name][where], logits.device) for name in _NAMES]
    repetition, frequency, presence = factors
    count = to_tensor(np.concatenate(counts), logits.device)
    seen_before = to_tensor(np.concatenate(known), logits.device) | (count > 0)
    place = (to_tensor(where, logits.device), to_tensor(np.concatenate(ids), logits.device))
    values = logits[place]
    penalized = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen_before, penalized, values)
    logits[place] = values - frequency * count - presence * (count > 0)
