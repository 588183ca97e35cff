"""A video that somebody sent -> its frames one after the other, within bounds."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from PIL import Image

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes
from pagoda.text.images.decode import decode_image, readable, to_pixels
from pagoda.text.media.base import Values
from pagoda.text.media.ffmpeg import damage_named, library, open_container

MAX_BYTES = 64 << 20
MAX_SECONDS = 2 * 3600.0
MAX_FRAME_PIXELS = 4096 * 2304
MAX_ALL_PIXELS = 1 << 35
"""Pixels of every frame in the file, since each is decoded to know the next: 9 minutes of 1920 x
1080 at 30 frames a second, 75 of 640 x 360."""
MAX_DECODE_SECONDS = 120.0
_MAX_FRAMES = 1 << 18
_INSTEAD = (
    "Frames (data:video/jpeg;base64,FRAME,FRAME) and animated GIF, WebP and PNG work without."
)
_ANIMATIONS = ("GIF", "WEBP", "PNG")
_DEFAULT_FRAME_SECONDS = 0.1
_CODECS = frozenset(
    ("h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "mpeg4", "mpeg1video",
     "mpeg2video", "mjpeg", "theora")
)  # fmt: skip


@dataclass(frozen=True)
class FrameChoice:
    """What a request asks for; None leaves it to the model."""

    fps: float | None = None
    """Frames that are looked at in a second; of a list of stills, how many a second has."""
    num_frames: int | None = None


_MODELS_CHOICE = FrameChoice()


class Film(Protocol):
    """A video that is open."""

    @property
    def num_frames(self) -> int: ...
    @property
    def fps(self) -> float: ...
    @property
    def choice(self) -> FrameChoice | None:
        """Which of its frames are to be looked at; None: all of them."""
        ...

    def frames(self, indices: Collection[int]) -> Iterator[Values]:
        """The frames asked for [1, height, width, 3], in order, as far as there are."""
        ...


@contextmanager
def open_film(data: bytes, choice: FrameChoice = _MODELS_CHOICE) -> Iterator[Film]:
    """The film in a video file's bytes, or an animated GIF's, WebP's or PNG's.

    RequestError for what is no video, is damaged or exceeds a bound, here or from its frames.
    """
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"A video has {format_bytes(len(data))}; at most {format_bytes(MAX_BYTES)} are taken."
        )
    if data[:4] in (b"GIF8", b"\x89PNG") or data[8:12] == b"WEBP":
        with readable("A video", data, _ANIMATIONS) as image:
            yield _Animation(image, choice)
    else:
        with damage_named(library("video", "video", _INSTEAD), "A video") as av:
            yield _Container(av, data, choice)


@dataclass(frozen=True)
class Stills:
    """Frames that are there one by one: pictures' files, or an array [frames, height, width, 3]."""

    each: Sequence[bytes] | Values
    fps: float
    choice: FrameChoice | None = None

    @property
    def num_frames(self) -> int:
        return len(self.each)

    def frames(self, indices: Collection[int]) -> Iterator[Values]:
        for index in sorted(indices):
            frame = self.each[index]
            yield decode_image(frame) if isinstance(frame, bytes) else frame[None]


class _Clock:
    """What decoding has left; it can't be stopped from outside."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_DECODE_SECONDS

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise RequestError(
                f"A video takes more than {MAX_DECODE_SECONDS:.0f} s to decode; send a shorter or "
                "a smaller one."
            )


def _check_frames(num_frames: int, fps: float, width: int, height: int) -> None:
    if not num_frames or min(width, height) < 1:
        raise RequestError("A video has no frames.")
    if num_frames / fps > MAX_SECONDS or num_frames > _MAX_FRAMES:
        raise RequestError(
            f"A video lasts {num_frames / fps:,.0f} s ({num_frames:,} frames); at most "
            f"{MAX_SECONDS:,.0f} s and {_MAX_FRAMES:,} frames are taken."
        )
    if width * height > MAX_FRAME_PIXELS:
        raise RequestError(
            f"A video has frames of {width} x {height} pixels; at most {MAX_FRAME_PIXELS:,} pixels "
            "are taken."
        )
    if num_frames * width * height > MAX_ALL_PIXELS:
        raise RequestError(
            f"A video has {num_frames:,} frames of {width} x {height} pixels, together more than "
            f"{MAX_ALL_PIXELS:,} pixels; send a shorter or a smaller one."
        )


class _Animation:
    """By pillow."""

    def __init__(self, image: Image.Image, choice: FrameChoice):
        self._image = image
        self.choice = choice
        self._clock = _Clock()
        self.num_frames = int(getattr(image, "n_frames", 1))
        _check_frames(self.num_frames, 1 / _DEFAULT_FRAME_SECONDS, *image.size)
        lasting = 0.0
        for _ in self._each():
            lasting += float(image.info.get("duration", 0)) / 1000 or _DEFAULT_FRAME_SECONDS
        self.fps = self.num_frames / lasting

    def frames(self, indices: Collection[int]) -> Iterator[Values]:
        wanted = frozenset(indices)
        for index in self._each():
            if index in wanted:
                yield to_pixels(self._image)

    def _each(self) -> Iterator[int]:
        for index in range(self.num_frames):
            self._clock.check()
            self._image.seek(index)
            self._image.load()
            yield index


class _Container:
    """By FFmpeg's libraries, one thread: the others belong to the models."""

    def __init__(self, av: ModuleType, data: bytes, choice: FrameChoice):
        self.choice = choice
        self._av = av
        self._data = data
        self._clock = _Clock()
        with self._open() as container:
            stream = _stream(container)
            codec = stream.codec_context
            rate = stream.average_rate or stream.base_rate or stream.guessed_rate
            self.fps = float(rate or 0) or 1 / _DEFAULT_FRAME_SECONDS
            # Headers may say anything, or nothing; packets are there or not.
            self.num_frames = 0
            for packet in container.demux(stream):
                self.num_frames += packet.size > 0
                if self.num_frames > _MAX_FRAMES:
                    break
                self._clock.check()
            _check_frames(self.num_frames, self.fps, codec.width, codec.height)

    def frames(self, indices: Collection[int]) -> Iterator[Values]:
        wanted, last = frozenset(indices), max(indices)
        with self._open() as container:
            stream = _stream(container)
            stream.codec_context.thread_count = 1
            # Frames may be larger than the header said.
            stream.codec_context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
            for index, frame in enumerate(container.decode(stream)):
                self._clock.check()
                if index in wanted:
                    turns = round(frame.rotation / 90)
                    yield np.rot90(frame.to_ndarray(format="rgb24"), turns)[None]
                if index >= last:
                    return

    def _open(self) -> Any:
        return open_container(self._av, self._data)


def _stream(container: Any) -> Any:
    if not container.streams.video:
        raise RequestError("What was sent as a video has no pictures in it.")
    stream = container.streams.video[0]
    if stream.codec_context is None or stream.codec_context.name not in _CODECS:
        name = "one that is not known" if stream.codec_context is None else stream.codec.name
        raise RequestError(
            f"A video's codec is {name}; send H.264, H.265, VP8, VP9, AV1 or MPEG-4."
        )
    return stream
