"""Words and their times, as transformers has them."""

import numpy as np
import pytest
from transformers.models.whisper.generation_whisper import _dynamic_time_warping
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from pagoda.text.sounds.alignment import token_times, words_of
from pagoda.text.sounds.speech import Speech

SPEECH = Speech(start=1001, end=1000, without_times=1100)


class Bytes:
    """A token is one of UTF-8's bytes, or begins with one."""

    language = None
    eos_token_id = SPEECH.end

    def decode(self, ids: list[int], **_: object) -> str:
        return bytes(id_ % 256 for id_ in ids).decode(errors="replace")


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (12, 40), (40, 12)])
def test_the_path_is_that_of_transformers(shape: tuple[int, int]) -> None:
    # Few different numbers, so that ways are often equally long.
    for seed in range(5):
        scores = np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
        tokens, parts = _dynamic_time_warping(-scores.astype(np.float64))
        begins = np.diff(tokens, prepend=-1).astype(bool)
        wanted = [*parts[begins] * 0.02, parts[begins][-1] * 0.02]
        assert token_times(scores) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("language", "name", "text"),
    [
        ("en", "english", ' It costs (about) $5, "no" more... ¿Qué? naïve – ok!'),
        ("de", "german", "Größe: 5 m; „gut“ - ja"),
        ("ja", "japanese", "今日は、いい天気ですね。"),
        ("zh", "chinese", "你好 (世界)"),
    ],
)
def test_words_are_those_of_transformers(language: str, name: str, text: str) -> None:
    ids = list(text.encode())
    texts, _, places = _combine_tokens_into_words(Bytes(), ids, name)
    wanted = [(text.strip(), at) for text, at in zip(texts, places, strict=True) if text.strip()]
    # A time is in front, and one behind.
    tokens = [1101, *ids, 1105, SPEECH.end]
    times = [float(place) for place in range(len(tokens))]
    found = words_of(tokens, times, SPEECH, Bytes(), language)
    assert [(word.text, word.start, word.end) for word in found] == [
        (text, at[0], at[-1] + 1.0) for text, at in wanted
    ]
