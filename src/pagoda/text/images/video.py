"""What a family of vision models makes of a moving picture: some frames, with their times."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.text.images.base import Pixels, ProcessedImage

_MAX_FPS = 1000.0


@dataclass(frozen=True)
class FrameChoice:
    """What a request asks for; None leaves it to the model."""

    fps: float | None = None
    """Frames that are looked at in a second; of a list of stills, how many a second has."""
    num_frames: int | None = None


@dataclass(frozen=True)
class ProcessedVideo:
    frames: tuple[ProcessedImage, ...]
    """What each run of tokens shows: some neighbouring frames, as a picture of its own."""
    seconds: tuple[float, ...]
    """When that is seen."""

    @property
    def nbytes(self) -> int:
        return sum(frame.pixels.nbytes for frame in self.frames)


class VideoProcessor(ABC):
    """Of one model; thread-safe. Frames are encoded as the model's pictures are."""

    token: str
    """Text of the token that stands for a piece of a frame."""
    placeholder: str
    """What templates that take strings get for a video; has `token` once."""
    max_frames: int

    @abstractmethod
    def choose(self, num_frames: int, fps: float, choice: FrameChoice) -> list[int]:
        """Which frames of a video are looked at, in order."""

    @abstractmethod
    def process(
        self, frames: Iterator[Pixels], indices: Sequence[int], fps: float
    ) -> ProcessedVideo:
        """`frames` [1, height, width, 3] are at most those of `indices`, of one size; RequestError
        where the model has no size for them."""

    @abstractmethod
    def text(self, video: ProcessedVideo) -> str:
        """What takes the place of the one `token` in a prompt: one for each of the video's frames,
        and what tells when these are seen."""

    @abstractmethod
    def limited(self, max_tokens: int, max_frame_tokens: int) -> "VideoProcessor":
        """The same with videos and frames of so many tokens at most."""


def frame_choice(media_io: Mapping[str, Any], processor: Mapping[str, Any]) -> FrameChoice:
    """Of `media_io_kwargs` and `mm_processor_kwargs`, of which the second counts more: `fps` and
    `num_frames`, -1 for as many as the model looks at."""
    unknown = [f"media_io_kwargs.{name}" for name in media_io.keys() - {"video"}]
    video = media_io.get("video") or {}
    if not isinstance(video, Mapping):
        raise RequestError("media_io_kwargs.video must be an object.", "media_io_kwargs")
    known = {"fps", "num_frames"}
    unknown += [f"media_io_kwargs.video.{name}" for name in video.keys() - known]
    unknown += [f"mm_processor_kwargs.{name}" for name in processor.keys() - known]
    if unknown:
        raise RequestError(
            f"{min(unknown)[:100]} is not supported; fps and num_frames of videos are.",
            min(unknown).partition(".")[0],
        )
    chosen = {**video, **processor}
    fps, count = chosen.get("fps"), chosen.get("num_frames")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float)):
        raise RequestError("fps must be a number of frames per second.", "mm_processor_kwargs")
    if fps is not None and not 0 < fps <= _MAX_FPS:
        raise RequestError(f"fps must be above 0, at most {_MAX_FPS:g}.", "mm_processor_kwargs")
    if count is not None and (type(count) is not int or (count < 1 and count != -1)):
        raise RequestError("num_frames must be 1 or more, or -1.", "mm_processor_kwargs")
    return FrameChoice(None if fps is None else float(fps), None if count == -1 else count)
