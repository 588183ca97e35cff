"""Sounds for Voxtral, which hears whole windows, one behind the other."""

from dataclasses import dataclass

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.text.media.base import Medium, Piece, Sizes
from pagoda.text.sounds.decode import RATE, Samples
from pagoda.text.sounds.mel import HOP, log_mel
from pagoda.text.sounds.whisper import WhisperProcessor, behind, frames_of

_STACKED = 4
"""Outputs of the encoder in a token."""


@dataclass(frozen=True)
class VoxtralProcessor(WhisperProcessor):
    """The last window ends in silence. All of a sound is one spectrogram, so that a window's
    loudness is told beside that of the others."""

    def process(self, opened: Samples) -> Medium:
        count = max(1, -(-len(opened) // (self.window * HOP)))
        frames = log_mel(opened, self.num_mels, count * self.window)
        pieces = tuple(
            Piece(behind(part), self.max_tokens, encoder=self.encoder)
            for part in frames.reshape(count, self.window, -1)
        )
        return Medium(pieces, text=self.token * count, seconds=len(opened) / RATE)

    def limited(self, sizes: Sizes) -> "VoxtralProcessor":
        return self


def from_config(reader: Reader) -> VoxtralProcessor:
    """By preprocessor_config.json of Voxtral; what it leaves out is as published."""
    window = frames_of(reader)
    return VoxtralProcessor(
        num_mels=reader.integer("feature_size", MAX_WIDTH, 128),
        window=window,
        max_tokens=window // 2 // _STACKED,
        token="[AUDIO]",
        placeholder="[BEGIN_AUDIO][AUDIO]",
    )
