"""When the words of a text were said (openai/whisper, timing.py)."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagoda.text.sounds.speech import STEP_SECONDS, Speech
from pagoda.text.tokenizer import Tokenizer

_SPACELESS = frozenset(("zh", "ja", "th", "lo", "my", "yue"))
"""Languages whose words are not apart."""
_OPENING = "\"'“¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"
_DIAGONAL, _DOWN, _RIGHT = range(3)


@dataclass(frozen=True)
class Word:
    text: str
    start: float
    end: float
    """Seconds since the window's begin."""


def token_times(scores: npt.NDArray[np.float32]) -> list[float]:
    """When each token ends, in seconds, and once more the last time for a token behind them, which
    nothing is known of: fp32 scores [tokens, parts] say how much what is written behind a token is
    about a part of the sound."""
    tokens, parts = _path(-scores.astype(np.float64))
    begins = np.flatnonzero(np.diff(tokens, prepend=-1))
    times = [float(part) * STEP_SECONDS for part in parts[begins]]
    return [*times, times[-1]]


def _path(costs: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and columns of the cheapest way through costs [rows, columns], from the first place to
    the last, which goes on by a row, a column or both."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.full((rows + 1, columns + 1), _RIGHT, np.int8)
    came[1:, 0] = _DOWN
    # All places of a diagonal depend on the two before it only.
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        way = np.where((both < down) & (both < right), _DIAGONAL, _RIGHT)
        way = np.where((down < both) & (down < right), _DOWN, way)
        came[i, j] = way
        total[i, j] = costs[i - 1, j - 1] + np.choose(way, (both, down, right))
    i, j = rows, columns
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = came[i, j]
        i -= step != _RIGHT
        j -= step != _DOWN
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


def words_of(
    tokens: Sequence[int],
    times: Sequence[float],
    speech: Speech,
    tokenizer: Tokenizer,
    language: str,
) -> list[Word]:
    """Words of a window's tokens, whose times are those of `token_times`: a word is said between
    the times of the token in front of it and of its last one."""
    ids = [(place, token) for place, token in enumerate(tokens) if token < speech.end]
    parts = _characters(ids, tokenizer)
    if language not in _SPACELESS:
        parts = _joined(parts)
    words = []
    for text, places in _punctuated(parts):
        if text.strip():
            begin = times[places[0] - 1] if places[0] else 0.0
            words.append(Word(text.strip(), begin, times[places[-1]]))
    return words


_Part = tuple[str, list[int]]
"""A text, and the places of its tokens."""


def _characters(ids: list[tuple[int, int]], tokenizer: Tokenizer) -> list[_Part]:
    """The least tokens that are whole characters."""
    whole = tokenizer.decode([token for _, token in ids])
    parts: list[_Part] = []
    places: list[int] = []
    pending: list[int] = []
    length = 0
    for place, token in ids:
        places.append(place)
        pending.append(token)
        text = tokenizer.decode(pending)
        broken = text.find("\N{REPLACEMENT CHARACTER}")
        at = length + broken
        if broken < 0 or at >= len(whole) or whole[at] == text[broken]:
            parts.append((text, places))
            length += len(text)
            places, pending = [], []
    return parts


def _joined(parts: list[_Part]) -> list[_Part]:
    """A word begins with a blank, and punctuation is one of its own."""
    words: list[_Part] = []
    for text, places in parts:
        alone = text.startswith(" ") or text.strip() in string.punctuation
        if alone or not words:
            words.append((text, places))
        else:
            before, its = words[-1]
            words[-1] = (before + text, its + places)
    return words


def _punctuated(words: list[_Part]) -> list[_Part]:
    """What opens goes with the word behind it, what closes with the one before it."""
    opened: list[_Part] = []
    for text, places in reversed(words):
        if opened and text.startswith(" ") and text.strip() in _OPENING:
            behind, its = opened[-1]
            opened[-1] = (text + behind, places + its)
        else:
            opened.append((text, places))
    closed: list[_Part] = []
    for text, places in reversed(opened):
        if closed and text in _CLOSING and not closed[-1][0].endswith(" "):
            before, its = closed[-1]
            closed[-1] = (before + text, its + places)
        else:
            closed.append((text, places))
    return closed
