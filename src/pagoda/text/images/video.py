"""Videos that somebody sent, or that a script has; and what a family of vision models makes of
one: some frames, with their times."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

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
"""Of a script's frames without metadata: as many as models look at."""


class VideoLoader(Loader):
    @property
    def max_bytes(self) -> int:
        return film.MAX_BYTES

    def data(self, url: str) -> Data:
        """Of `data:video/jpeg;base64,FRAME,FRAME,...` each frame's, as vLLM takes them."""
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
            return self.frames(opened.frames(indices), indices, opened.fps)
        if opened.num_frames > self.max_frames:
            raise RequestError(
                f"A video has {opened.num_frames} frames, and this model takes at most "
                f"{self.max_frames}; send fewer, or a video file of which it chooses."
            )
        every = range(opened.num_frames)
        return self.frames(opened.frames(every), every, opened.fps)

    @abstractmethod
    def choose(self, num_frames: int, fps: float, choice: FrameChoice) -> list[int]:
        """Which frames of a video are looked at, in order."""

    @abstractmethod
    def frames(self, frames: Iterator[Values], indices: Sequence[int], fps: float) -> Medium:
        """`frames` [1, height, width, 3] are at most those of `indices`, of one size; RequestError
        where the model has no size for them."""

    @abstractmethod
    def limited(self, sizes: Sizes) -> "VideoProcessor":
        """`video` of all frames, `image` of one."""
