"""Videos that somebody sent, or that a script has; and what a family of vision models makes of
one: some frames, with their times."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from PIL import Image

from pagoda.base.errors import RequestError
from pagoda.text.images import film
from pagoda.text.images.film import Film, FrameChoice, Stills
from pagoda.text.images.picture import is_picture, pixels_of
from pagoda.text.media.base import Data, Loader, Medium, Options, Processor, Sizes, Values
from pagoda.text.media.dataurl import base64_bytes, split_data_url

_STILLS = "data:video/jpeg;base64"
_STILLS_PER_SECOND = 1.0
"""What vLLM assumes of frames that come one by one."""
_FRAMES_PER_SECOND = 2.0
"""Rate of a script's frames without metadata: as many as models look at."""


class VideoLoader(Loader):
    @property
    def max_bytes(self) -> int:
        return film.MAX_BYTES

    def data(self, url: str) -> Data:
        """Each frame's bytes in `data:video/jpeg;base64,FRAME,FRAME,...`, as vLLM takes them."""
        head, body = split_data_url(url, "a video", "video")
        if head == _STILLS:
            return tuple(base64_bytes(frame, "a video's frame") for frame in body.split(","))
        return base64_bytes(body, "a video")

    def opened(self, data: Data, options: Options) -> AbstractContextManager[Film]:
        choice = FrameChoice(**options)
        if isinstance(data, bytes):
            return film.open_film(data, choice)
        return nullcontext(Stills(data[: choice.num_frames], choice.fps or _STILLS_PER_SECOND))

    def given(self, value: Any, options: Options) -> Film:
        metadata: Mapping[str, Any] = {}
        if isinstance(value, tuple):
            value, metadata = value
        choice = FrameChoice(**options)
        frames = np.concatenate([pixels_of(frame) for frame in value])
        fps = float(choice.fps or metadata.get("fps") or _FRAMES_PER_SECOND)
        left = None if choice.num_frames is None else FrameChoice(num_frames=choice.num_frames)
        return Stills(frames, fps, left)

    def several(self, value: Any) -> list[Any]:
        """Arrays of frames are videos, and so is a list of pictures."""
        videos = isinstance(value, list) and bool(value) and not is_picture(value[0])
        return value if videos else [value]

    def preload(self) -> None:
        with contextlib.suppress(ImportError):  # it is an extra
            import av  # noqa: F401 - here once, for all that are forked


class VideoProcessor(Processor):
    """Frames are encoded as the model's pictures are."""

    max_frames: int
    encoder = "image"

    def process(self, opened: Film) -> Medium:
        if opened.choice is not None:
            indices = self.choose(opened.num_frames, opened.fps, opened.choice)
            return self.frames(opened.frames(indices), indices, opened)
        if opened.num_frames > self.max_frames:
            raise RequestError(
                f"A video has {opened.num_frames} frames, and this model takes at most "
                f"{self.max_frames}; send fewer, or a video file of which it chooses."
            )
        every = range(opened.num_frames)
        return self.frames(opened.frames(every), every, opened)

    @abstractmethod
    def choose(self, num_frames: int, fps: float, choice: FrameChoice) -> list[int]:
        """Which frames of a video are looked at, in order."""

    @abstractmethod
    def frames(self, frames: Iterator[Values], indices: Sequence[int], film: Film) -> Medium:
        """`frames` [1, height, width, 3] are at most those of `indices`, of one size; RequestError
        where the model has no size for them, or none for so long a film."""

    @abstractmethod
    def limited(self, sizes: Sizes) -> "VideoProcessor":
        """`video` of all frames, `image` of one."""


def resized(frames: Iterable[Values], height: int, width: int) -> list[Values]:
    """Frames [1, ...] in another size, each [height, width, 3]."""
    size, kind = (width, height), Image.Resampling.BICUBIC
    return [np.asarray(Image.fromarray(frame[0]).resize(size, kind)) for frame in frames]


def in_runs(frames: list[Values], count: int) -> list[Values]:
    """Runs [count, height, width, 3] of frames [height, width, 3]; the last frame stands still."""
    frames = frames + frames[-1:] * (-len(frames) % count)
    return [np.stack(frames[start : start + count]) for start in range(0, len(frames), count)]


def first_of(frames: Iterator[Values]) -> Values:
    """RequestError where there is none."""
    first = next(frames, None)
    if first is None:
        raise RequestError("A video has no frames that could be decoded.")
    return first
