"""Which tokens may come next in a text that writes down a sound (openai/whisper, decoding.py)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.messages import SpeechRules
from pagoda.runtime.device import to_tensor


class SpeechMask:
    """SpeechRules for a vocabulary."""

    def __init__(self, rules: SpeechRules, vocab_size: int):
        self.rules = rules
        self.never = _known(rules.never, vocab_size)
        self.not_first = _known(rules.not_first, vocab_size)


def apply_speech(logits: torch.Tensor, mask: SpeechMask, output: npt.NDArray[np.int32]) -> None:
    """Set to -inf, in place, what cannot follow the generated tokens `output`; fp32 [vocab]."""
    for forbidden in (mask.never, () if len(output) else mask.not_first):
        if len(forbidden):
            logits[to_tensor(np.asarray(forbidden), logits.device)] = -torch.inf
    if mask.rules.first_time is not None:
        _apply_times(logits, mask.rules, mask.rules.first_time, output)


def _apply_times(
    logits: torch.Tensor, rules: SpeechRules, first: int, output: npt.NDArray[np.int32]
) -> None:
    """Times begin the text, stand in pairs except at its end, and never go back."""
    words, times = logits[:first], logits[first:]
    words[-1] = -torch.inf  # it says that there are no times
    if not len(output):
        words.fill_(-torch.inf)
        if rules.latest_begin is not None:
            times[rules.latest_begin + 1 :] = -torch.inf
        return
    after_time = bool(output[-1] >= first)
    after_pair = after_time and (len(output) < 2 or bool(output[-2] >= first))
    if after_pair:
        times.fill_(-torch.inf)
    elif after_time:
        logits[: rules.end] = -torch.inf
    written = output[output >= first]
    if len(written):
        # The second of a pair may say what the first says; a later text begins later.
        again = after_time and not after_pair
        times[: int(written[-1]) - first + (not again)] = -torch.inf
    # All times together are more likely than any word: then it is one of them.
    likely = times.logsumexp(0) > words.max()
    words.masked_fill_(likely, -torch.inf)


def _known(ids: Sequence[int], vocab_size: int) -> npt.NDArray[np.int64]:
    """Tokens that the model cannot produce need no ban."""
    return np.array(sorted({id_ for id_ in ids if 0 <= id_ < vocab_size}), np.int64)
