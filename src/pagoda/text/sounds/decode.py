"""A sound that somebody sent -> its samples, within bounds."""

import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes
from pagoda.text.media.ffmpeg import damage_named, library, open_container

Samples = npt.NDArray[np.float32]
"""[samples], one channel, 16,000 in a second, from -1 to 1."""

RATE = 16_000
MAX_BYTES = 64 << 20
MAX_SECONDS = 2 * 3600.0
MAX_DECODE_SECONDS = 120.0
_MAX_RATE, _MAX_CHANNELS = 768_000, 64
_CODECS = frozenset(
    ("aac", "alac", "amrnb", "amrwb", "flac", "libopus", "libvorbis", "mp2", "mp2float", "mp3",
     "mp3float", "opus", "vorbis")
)  # fmt: skip
_INSTEAD = "Without it no sound can be read."


def decode_sound(data: bytes) -> Samples:
    """The sound in the bytes of a file, of a film the one that goes with it: channels are mixed,
    and the rate becomes 16 kHz.

    RequestError for what is no sound, is damaged, or exceeds MAX_BYTES, MAX_SECONDS or
    MAX_DECODE_SECONDS.
    """
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"A sound has {format_bytes(len(data))}; at most {format_bytes(MAX_BYTES)} are taken."
        )
    with (
        damage_named(library("sound", "audio", _INSTEAD), "A sound") as av,
        open_container(av, data, sounds=True) as container,
    ):
        return _joined(_resampled(av, _frames(container)))


def resampled(samples: npt.NDArray[Any], rate: int) -> Samples:
    """`samples` [samples] or [samples, channels] of another rate, in floats from -1 to 1."""
    if samples.ndim == 2:
        samples = samples.mean(1)
    given = np.ascontiguousarray(samples, np.float32)
    if rate == RATE:
        return given
    av = library("sound", "audio", _INSTEAD)
    frame = av.AudioFrame.from_ndarray(given[None], format="flt", layout="mono")
    frame.sample_rate = rate
    return _joined(_resampled(av, iter([frame])))


def _frames(container: Any) -> Iterator[Any]:
    if not container.streams.audio:
        raise RequestError("What was sent as a sound has no sound in it.")
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec is None or not (codec.name in _CODECS or codec.name.startswith("pcm_")):
        name = "one that is not known" if codec is None else codec.name
        raise RequestError(f"A sound's codec is {name}; send WAV, MP3, AAC, FLAC, Opus or Vorbis.")
    codec.thread_count = 1
    return iter(container.decode(stream))


def _resampled(av: ModuleType, frames: Iterator[Any]) -> Iterator[Samples]:
    # Channels are mixed here: what FFmpeg makes of several is louder than each.
    resampler = av.AudioResampler(format="fltp", rate=RATE)
    end = time.monotonic() + MAX_DECODE_SECONDS
    for frame in frames:
        if frame.sample_rate > _MAX_RATE or frame.layout.nb_channels > _MAX_CHANNELS:
            raise RequestError(
                f"A sound has {frame.layout.nb_channels} channels of {frame.sample_rate:,} Hz; at "
                f"most {_MAX_CHANNELS} of {_MAX_RATE:,} are taken."
            )
        if time.monotonic() > end:
            raise RequestError(
                f"A sound takes more than {MAX_DECODE_SECONDS:.0f} s to decode; send a shorter one."
            )
        for part in resampler.resample(frame):
            yield part.to_ndarray().mean(0)
    for part in resampler.resample(None):
        yield part.to_ndarray().mean(0)


def _joined(parts: Iterator[Samples]) -> Samples:
    found, count = [], 0
    for part in parts:
        count += len(part)
        if count > MAX_SECONDS * RATE:
            raise RequestError(
                f"A sound lasts more than {MAX_SECONDS:,.0f} s, which is the most that is taken; "
                "send it in parts."
            )
        found.append(part)
    if not count:
        raise RequestError("A sound has no samples.")
    return np.concatenate(found)
