"""Files of sound become samples at 16 kHz, within bounds."""

import sys

import numpy as np
import pytest

from pagoda.base.errors import RequestError
from pagoda.text.sounds import decode
from pagoda.text.sounds.decode import RATE, decode_sound
from pagoda.text.sounds.sound import SoundLoader
from tests.unit.text.sounds import encoded, tone, wav


def test_what_needs_no_change_has_none() -> None:
    samples = tone(0.5, RATE)
    found = decode_sound(wav([samples], RATE))
    np.testing.assert_allclose(found, samples, rtol=0, atol=1 / 32767)
    assert found.dtype == np.float32


def test_channels_are_mixed_and_rates_become_16_khz() -> None:
    rate = 44_100
    found = decode_sound(wav([tone(1, rate, 300), tone(1, rate, 900)], rate))
    assert abs(len(found) - RATE) <= 64
    count = min(len(found), RATE) - 200
    expected = (tone(1, RATE, 300) + tone(1, RATE, 900)) / 2
    np.testing.assert_allclose(found[200:count], expected[200:count], rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [("mp3", "libmp3lame", 16_000), ("flac", "flac", 48_000), ("ogg", "libopus", 48_000),
     ("mp4", "aac", 22_050), ("webm", "libopus", 48_000)],
)  # fmt: skip
def test_files_of_many_kinds(container: str, codec: str, rate: int) -> None:
    found = decode_sound(encoded(tone(1, rate), rate, container, codec))
    assert 0.95 * RATE < len(found) < 1.2 * RATE
    spectrum = np.abs(np.fft.rfft(found))
    assert abs(spectrum.argmax() * RATE / len(found) - 440) < 3


def test_bounds_and_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = wav([tone(0.2, RATE)], RATE)
    for data, words in (
        (b"RIFF" + b"x" * 50, "damaged, cut off or of an unknown kind"),
        (b"#EXTM3U\n/etc/passwd\n", "damaged, cut off or of an unknown kind"),
        (wav([tone(0, RATE)], RATE), "no samples|damaged"),
    ):
        with pytest.raises(RequestError, match=words):
            decode_sound(data)
    monkeypatch.setattr(decode, "MAX_SECONDS", 0.1)
    with pytest.raises(RequestError, match="lasts more than 0 s.*send it in parts"):
        decode_sound(whole)
    monkeypatch.setattr(decode, "MAX_DECODE_SECONDS", -1.0)
    with pytest.raises(RequestError, match="to decode; send a shorter one"):
        decode_sound(whole)
    monkeypatch.setattr(decode, "MAX_BYTES", 100)
    with pytest.raises(RequestError, match="at most 100 B"):
        decode_sound(whole)
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr(decode, "MAX_BYTES", 1 << 20)
    with pytest.raises(RequestError, match=r"pip install 'pagoda-llm\[audio\]'"):
        decode_sound(whole)


def test_scripts_give_arrays_with_their_rates() -> None:
    loader = SoundLoader()
    samples = tone(0.5, RATE)
    assert loader.given(samples, {}) is not None
    np.testing.assert_array_equal(loader.given((samples, RATE), {}), samples)
    assert abs(len(loader.given((np.stack([samples] * 2, 1), 2 * RATE), {})) - RATE // 4) <= 32
    with pytest.raises(RequestError, match="array of floats"):
        loader.given([1, 2, 3], {})
