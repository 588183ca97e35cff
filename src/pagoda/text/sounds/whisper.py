"""Sounds for models with Whisper's encoder."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pagoda.arch.families.whisper_encoder import FRAMES_PER_SECOND, WINDOW_SECONDS
from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError, UnsupportedModelError
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values
from pagoda.text.sounds.decode import RATE, Samples
from pagoda.text.sounds.mel import HOP, Mels, log_mel

AHEAD = 2
"""Frames behind a sound that convolutions look ahead to."""
_QUIET = RATE // 20
"""Samples whose loudness is compared."""
_KNOWN = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": 400}


@dataclass(frozen=True)
class WhisperProcessor(Processor):
    """One window of sound, of which the encoder sees what is no padding."""

    num_mels: int
    window: int
    """Frames of the longest sound."""
    max_tokens: int
    token: str
    placeholder: str
    encoder: str = "audio"

    def process(self, opened: Samples) -> Medium:
        frames = self.check(opened)
        num_tokens = ((frames - 1) // 2 + 1) // 2
        if not num_tokens:
            raise RequestError("A sound is shorter than 0.03 s; send a longer one.")
        if num_tokens > self.max_tokens:
            raise RequestError(
                f"A sound takes {num_tokens} tokens of this model, and may have no more than "
                f"{self.max_tokens} here; send a shorter one."
            )
        values = behind(log_mel(opened, self.num_mels, self.window))[: frames + AHEAD]
        return Medium((Piece(values, num_tokens, encoder=self.encoder),))

    def check(self, samples: Samples) -> int:
        """How many frames they are; RequestError for more than a window has."""
        frames = -(-len(samples) // HOP)
        if frames > self.window:
            raise RequestError(
                f"A sound lasts {len(samples) / RATE:,.1f} s, and this model hears "
                f"{self.window / FRAMES_PER_SECOND:g} s at most; send it in parts."
            )
        return frames

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        return values, (1, 1, len(values))

    def limited(self, sizes: Sizes) -> "WhisperProcessor":
        return replace(self, max_tokens=min(self.max_tokens, sizes["audio"]))


def behind(frames: Mels) -> Mels:
    """A whole window with the zeros that convolutions find behind it."""
    return np.pad(frames, ((0, AHEAD), (0, 0)))


def qwen2_from_config(reader: Reader) -> WhisperProcessor:
    """By preprocessor_config.json of Qwen2-Audio; what it leaves out is as published."""
    window = frames_of(reader)
    return WhisperProcessor(
        num_mels=reader.integer("feature_size", MAX_WIDTH, 128),
        window=window,
        max_tokens=window // 4,
        token="<|AUDIO|>",
        placeholder="<|audio_bos|><|AUDIO|><|audio_eos|>\n",
    )


def frames_of(reader: Reader) -> int:
    """Frames of a window; UnsupportedModelError for spectrograms of another kind."""
    for name, known in _KNOWN.items():
        found = reader.integer(name, MAX_WIDTH, known)
        if found != known:
            raise UnsupportedModelError(
                f"The preprocessor's {name} is {found}, and known is {known}, which Whisper has."
            )
    return FRAMES_PER_SECOND * reader.integer("chunk_length", MAX_WIDTH, WINDOW_SECONDS)


@dataclass(frozen=True)
class WhisperWindows(WhisperProcessor):
    """Whole windows, which the encoder sees with the silence behind a sound, each in a prompt of
    its own."""

    def process(self, opened: Samples) -> Medium:
        starts = window_starts(opened, self.window * HOP)
        pieces: list[Piece] = []
        for start, end in zip(starts, [*starts[1:], len(opened)], strict=True):
            values = behind(log_mel(opened[start:end], self.num_mels, self.window))
            since = (start - starts[len(pieces) - 1]) / RATE if pieces else None
            pieces.append(Piece(values, self.max_tokens, encoder="audio", seconds_on=since))
        return Medium(tuple(pieces), seconds=len(opened) / RATE)

    def limited(self, sizes: Sizes) -> "WhisperWindows":
        return self


def window_starts(samples: Samples, longest: int) -> list[int]:
    """Where windows of at most `longest` samples begin: a window ends at the quietest place of its
    last tenth, unless it is the last one."""
    starts = [0]
    while len(samples) - starts[-1] > longest:
        end = starts[-1] + longest
        late = samples[end - longest // 10 : end]
        parts = late[: len(late) // _QUIET * _QUIET].reshape(-1, _QUIET)
        quietest = int((parts.astype(np.float64) ** 2).sum(1).argmin())
        starts.append(end - longest // 10 + quietest * _QUIET + _QUIET // 2)
    return starts


def from_config(reader: Reader) -> WhisperWindows:
    """By preprocessor_config.json of Whisper; what it leaves out is as published."""
    window = frames_of(reader)
    mark = "<|startoftranscript|>"
    mels = reader.integer("feature_size", MAX_WIDTH, 80)
    return WhisperWindows(mels, window, window // 2, token=mark, placeholder=mark)
