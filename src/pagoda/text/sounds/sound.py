"""Sounds that somebody sent, or that a script has."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pagoda.base.errors import RequestError
from pagoda.text.media.base import Data, Loader, Options
from pagoda.text.media.dataurl import base64_bytes, split_data_url
from pagoda.text.sounds import decode
from pagoda.text.sounds.decode import Samples


class SoundLoader(Loader):
    @property
    def max_bytes(self) -> int:
        return decode.MAX_BYTES

    def data(self, url: str) -> bytes:
        _, body = split_data_url(url, "a sound", "audio")
        return base64_bytes(body, "a sound")

    @contextmanager
    def opened(self, data: Data, options: Options) -> Iterator[Samples]:
        assert isinstance(data, bytes)
        yield decode.decode_sound(data)

    def given(self, value: Any, options: Options) -> Samples:
        """Samples at 16 kHz, or (samples, rate)."""
        samples, rate = value if isinstance(value, tuple) else (value, decode.RATE)
        array = np.asarray(samples)
        if array.dtype.kind != "f" or array.ndim not in (1, 2) or not len(array):
            raise RequestError(
                "A sound is an array of floats [samples] or [samples, channels] at 16 kHz, or a "
                f"tuple of one and its rate, not {type(samples).__name__} of {array.dtype}.",
                "prompts",
            )
        return decode.resampled(array, int(rate))

    def preload(self) -> None:
        with contextlib.suppress(ImportError):  # it is an extra
            import av  # noqa: F401 - here once, for all that are forked
