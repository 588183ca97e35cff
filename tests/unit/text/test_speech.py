"""Where long sounds are cut, and what becomes of times among what was written down."""

import numpy as np

from pagoda.text.sounds.decode import RATE
from pagoda.text.sounds.speech import Segment, Speech, segments_of, written
from pagoda.text.sounds.whisper import window_starts

SPEECH = Speech(start=300, end=299, without_times=400)


class Letters:
    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


def times(*seconds: float) -> list[int]:
    return [401 + round(50 * at) for at in seconds]


def test_long_sounds_are_cut_where_they_are_quiet() -> None:
    samples = np.ones(10 * RATE, np.float32)
    quiet = int(3.8 * RATE)
    samples[quiet : quiet + RATE // 10] = 0
    first, second, *_ = window_starts(samples, 4 * RATE)
    assert first == 0 and quiet <= second <= quiet + RATE // 10
    starts = window_starts(samples, 4 * RATE)
    assert all(0 < b - a <= 4 * RATE for a, b in zip(starts, starts[1:], strict=False))
    assert len(samples) - starts[-1] <= 4 * RATE
    assert window_starts(samples, 10 * RATE) == [0]


def test_texts_lie_between_times() -> None:
    ids = [*times(0.5), *b" ab", *times(1.5, 2), *b" c", *times(9), *b" d"]
    found = segments_of(ids, SPEECH, Letters(), 30.0, 38.0)
    assert [(one.start, one.end, one.text) for one in found] == [
        (30.5, 31.5, " ab"), (32.0, 38.0, " c"), (38.0, 38.0, " d"),
    ]  # fmt: skip
    assert found[0].tokens == (*times(0.5), *b" ab", *times(1.5))
    (whole,) = segments_of(list(b"no times"), SPEECH, Letters(), 1.0, 2.0)
    assert (whole.start, whole.end) == (1.0, 2.0)
    assert segments_of(times(0.5, 1), SPEECH, Letters(), 0.0, 2.0) == []


def test_subtitles() -> None:
    segments = [Segment(0.0, 1.5, (), " One"), Segment(3661.25, 3662.0, (), " a --> b")]
    assert written(segments, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne\n\n2\n01:01:01,250 --> 01:01:02,000\na -> b\n\n"
    )
    assert written(segments[:1], "vtt") == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne\n\n"
    assert written([], "srt") == ""
