"""Tokens that a request forbids or favours: allowed ids, bad words, minimum length, bias."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from pagoda.runtime.device import to_tensor
from pagoda.runtime.sampling.params import Rules


def apply_rules(
    logits: torch.Tensor,
    entries: Iterable[tuple[int, Rules, npt.NDArray[np.int32]]],
) -> None:
    """Change rows of logits [rows, vocab] in place.

    Each entry is a row, its request's rules and the tokens generated before it (drafts included).
    Allowed ids, bad words and minimum length forbid first; bias then moves what is left.
    """
    banned: list[tuple[int, npt.NDArray[np.int64]]] = []
    biased: list[tuple[int, Rules]] = []
    for row, rules, output in entries:
        if rules.allowed is not None:
            _allow_only(logits[row], rules.allowed)
        if rules.bad_words:
            banned.append((row, _completed_words(rules.bad_words, output)))
        if len(output) < rules.min_tokens:
            banned.append((row, rules.ending))
        if len(rules.bias_ids):
            biased.append((row, rules))
    if banned:
        rows, ids = _indices(banned, logits.device)
        logits[rows, ids] = -torch.inf
    if biased:
        rows, ids = _indices([(row, rules.bias_ids) for row, rules in biased], logits.device)
        bias = np.concatenate([rules.bias for _, rules in biased])
        logits[rows, ids] += to_tensor(bias, logits.device)


def _allow_only(row: torch.Tensor, allowed: npt.NDArray[np.int64]) -> None:
    ids = to_tensor(allowed, row.device)
    kept = row[ids]
    row.fill_(-torch.inf)
    row[ids] = kept


def _completed_words(
    words: list[list[int]], output: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """Last tokens of the words whose other tokens end `output`."""
    longest = max(len(word) for word in words) - 1
    tail = output[max(0, len(output) - longest) :].tolist()
    last = [
        word[-1]
        for word in words
        if len(word) - 1 <= len(tail) and tail[len(tail) - len(word) + 1 :] == word[:-1]
    ]
    return np.array(last, np.int64)


def _indices(
    pairs: list[tuple[int, npt.NDArray[np.int64]]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.repeat([row for row, _ in pairs], [len(ids) for _, ids in pairs]).astype(np.int64)
    ids = np.concatenate([ids for _, ids in pairs])
    return to_tensor(rows, device), to_tensor(ids, device)
