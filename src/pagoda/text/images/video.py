"""What a family of vision models makes of a moving picture: some frames, with their times."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagoda.text.images.base import Pixels, ProcessedImage


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
