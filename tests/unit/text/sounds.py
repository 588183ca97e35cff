"""Files of sound for tests, by PyAV's encoders and the standard library."""

import io
import wave

import av
import numpy as np


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    """fp32 [samples], half as loud as can be."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def wav(channels: list[np.ndarray], rate: int) -> bytes:
    """16 bits a sample."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.stack(channels, 1) * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()


def encoded(samples: np.ndarray, rate: int, container: str, codec: str) -> bytes:
    """As a file of another kind, one channel."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, "mono", rate, stream.frame_size or 1024)
        for given in (frame, None):
            for part in resampler.resample(given):
                file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return buffer.getvalue()
