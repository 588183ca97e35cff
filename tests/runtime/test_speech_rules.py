"""What may come next in a text that writes down a sound, as transformers has it."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from pagoda.core.messages import SpeechRules
from pagoda.runtime.sampling.speech import SpeechMask, apply_speech

VOCAB, END, FIRST = 60, 40, 45
"""40 words, the end and four marks, of which the last says that there are no times."""
BEGIN = 3


def theirs(ids: list[int], logits: torch.Tensor, latest: int | None) -> torch.Tensor:
    config = GenerationConfig(eos_token_id=END, no_timestamps_token_id=FIRST - 1)
    config.max_initial_timestamp_index = latest
    given = torch.tensor([[1] * BEGIN + ids])
    for each in (
        SuppressTokensAtBeginLogitsProcessor([3, END], BEGIN),
        SuppressTokensLogitsProcessor([5, 42]),
        WhisperTimeStampLogitsProcessor(config, BEGIN),
    ):
        logits = each(given, logits)
    return logits[0]


@pytest.mark.parametrize("latest", [None, 4])
def test_rules_are_those_of_transformers(latest: int | None) -> None:
    rules = SpeechRules(
        never=[5, 42, 99], not_first=[3, END], first_time=FIRST, end=END, latest_begin=latest
    )
    mask = SpeechMask(rules, VOCAB)
    generator = torch.Generator().manual_seed(0)
    texts = [
        [], [FIRST + 2], [7], [FIRST + 2, 9], [FIRST + 2, 9, 11, FIRST + 5],
        [FIRST + 2, 9, FIRST + 5, FIRST + 5], [FIRST + 2, 9, FIRST + 5, FIRST + 7, 8],
        [FIRST, 8, FIRST + 14], [FIRST, FIRST],
    ]  # fmt: skip
    forced = 0
    for ids in texts:
        # Flat ones make all times together likely, steep ones a word.
        for steepness in (0.1, 1.0, 4.0):
            logits = steepness * torch.randn(1, VOCAB, generator=generator)
            found = logits[0].clone()
            apply_speech(found, mask, np.array(ids, np.int32))
            expected = theirs(ids, logits, latest)
            assert torch.equal(found, expected)
            forced += bool(ids) and ids[-1] < FIRST and bool(found[:FIRST].isneginf().all())
    assert 0 < forced < 3 * len(texts)


def test_a_text_without_times_has_the_other_rules() -> None:
    mask = SpeechMask(SpeechRules(never=[5], not_first=[3], end=END), VOCAB)
    first, later = torch.zeros(VOCAB), torch.zeros(VOCAB)
    apply_speech(first, mask, np.array([], np.int32))
    apply_speech(later, mask, np.array([7], np.int32))
    assert first.isneginf().nonzero().flatten().tolist() == [3, 5]
    assert later.isneginf().nonzero().flatten().tolist() == [5]
