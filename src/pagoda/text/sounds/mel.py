"""Log-mel spectrograms as Whisper reads them (arXiv 2212.04356, section 2.2)."""

from functools import cache

import numpy as np
import numpy.typing as npt

from pagoda.text.sounds.decode import RATE, Samples

Mels = npt.NDArray[np.float32]
"""[frames, num_mels]."""

HOP = 160
"""Samples from frame to frame: 100 frames in a second."""
_WIDTH = 400
"""Samples that a frame is made of."""
_FLOOR = -10.0
"""The logarithm of silence."""
_RANGE = 8.0
# Slaney's scale: linear up to 1000 Hz, where the 15th mel is, and 27 mels for a factor of 6.4 above
# (Auditory Toolbox, 1998).
_LINEAR_HZ, _CORNER_HZ, _STEPS, _FACTOR = 200 / 3, 1000.0, 27, 6.4
_HIGHEST_HZ = 8000.0


def log_mel(samples: Samples, num_mels: int, window: int) -> Mels:
    """[window, num_mels] of at most `window` frames of sound, behind which is silence: decimal
    logarithms of power, at most 8 below the largest, brought to about -1 to 1."""
    frames = -(-len(samples) // HOP)
    # Frames are centered on their samples; what is in front of the first is mirrored.
    most = min(frames + 2, window)
    padded = np.zeros(_WIDTH + max(window * HOP, len(samples)))
    half = _WIDTH // 2
    padded[half : half + len(samples)] = samples
    padded[:half] = padded[half + 1 : _WIDTH + 1][::-1]
    if len(samples) > window * HOP - half:
        end = half + window * HOP
        padded[end : end + half] = padded[end - half - 1 : end - 1][::-1]
    shape = np.lib.stride_tricks.sliding_window_view(padded, _WIDTH)[::HOP][:most]
    power = np.abs(np.fft.rfft(shape * _hann())) ** 2
    logs = np.full((window, num_mels), _FLOOR)
    logs[:most] = np.log10(np.maximum(power @ filters(num_mels), 10.0**_FLOOR))
    scaled: Mels = ((np.maximum(logs, logs.max() - _RANGE) + 4.0) / 4.0).astype(np.float32)
    return scaled


@cache
def filters(num_mels: int) -> npt.NDArray[np.float64]:
    """[frequencies, num_mels]: triangles between neighbouring mels, of equal area."""
    frequencies = np.arange(_WIDTH // 2 + 1) * RATE / _WIDTH
    top = _CORNER_HZ / _LINEAR_HZ + np.log(_HIGHEST_HZ / _CORNER_HZ) * _STEPS / np.log(_FACTOR)
    edges = _hertz(np.linspace(0, top, num_mels + 2))
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - low) / (middle - low)
    falling = (high - frequencies[:, None]) / (high - middle)
    triangles: npt.NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    return triangles * 2 / (high - low)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    corner = _CORNER_HZ / _LINEAR_HZ
    above = _CORNER_HZ * np.exp(np.log(_FACTOR) / _STEPS * (np.maximum(mels, corner) - corner))
    return np.where(mels < corner, mels * _LINEAR_HZ, above)


@cache
def _hann() -> npt.NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WIDTH) / _WIDTH)
