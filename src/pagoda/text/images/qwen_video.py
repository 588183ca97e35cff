"""Videos for Qwen3-VL and Qwen3.5 (arXiv 2511.21631): pairs of frames, each behind its time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError
from pagoda.text.images.film import Film, FrameChoice
from pagoda.text.images.qwen_vl import MAX_ASPECT, MAX_PIXELS
from pagoda.text.images.video import VideoProcessor, first_of, in_runs, resized
from pagoda.text.media.base import Medium, Piece, Sizes, Values

# Of video_preprocessor_config.json as Qwen3-VL is published.
_SMALLEST = 1 << 12
_LARGEST = 25_165_824
MAX_FRAMES = 1 << 16
# With a budget of tokens, as many frames as leave each pair so many: the time in front of a pair
# takes 10 more.
PAIR_TOKENS = 16


@dataclass(frozen=True)
class QwenVideoProcessor(VideoProcessor):
    unit: int
    """Pixels of a token's side."""
    temporal_patch: int
    """Frames that become one row of tokens."""
    min_pixels: int
    max_pixels: int
    """Pixels of all frames together."""
    max_frame_pixels: int
    fps: float
    min_frames: int
    max_frames: int

    token = "<|video_pad|>"
    placeholder = "<|vision_start|><|video_pad|><|vision_end|>"

    def choose(self, num_frames: int, fps: float, choice: FrameChoice) -> list[int]:
        count = choice.num_frames
        if count is None or choice.fps is not None:
            wanted = max(int(num_frames / fps * (choice.fps or self.fps)), self.min_frames)
            count = wanted if count is None else min(count, wanted)
        count = max(1, min(count, self.max_frames, num_frames))
        chosen: list[int] = np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
        return chosen

    def frames(self, frames: Iterator[Values], indices: Sequence[int], film: Film) -> Medium:
        first = first_of(frames)
        height, width = self._size(len(indices), *first.shape[1:3])
        seen = resized(chain([first], frames), height, width)
        grid = (1, height // self.unit, width // self.unit)
        shown = in_runs(seen, self.temporal_patch)
        times = [index / film.fps for index in indices[: len(seen)]]
        times += times[-1:] * (-len(seen) % self.temporal_patch)
        starts = range(0, len(times), self.temporal_patch)
        seconds = [(times[start] + times[start + self.temporal_patch - 1]) / 2 for start in starts]
        # Between the marks that the template has written around the token, as transformers does
        # since 5.10 and vLLM with it; before, these were replaced as well.
        text = "".join(f"<{time:.1f} seconds>{self.placeholder}" for time in seconds)
        return Medium(tuple(Piece(pair, math.prod(grid), grid) for pair in shown), text)

    def limited(self, sizes: Sizes) -> "QwenVideoProcessor":
        max_tokens = sizes["video"]
        most = max_tokens * self.unit**2 * self.temporal_patch
        pairs = max(1, max_tokens // PAIR_TOKENS)
        return replace(
            self,
            max_pixels=min(self.max_pixels, most),
            min_pixels=min(self.min_pixels, most),
            max_frame_pixels=sizes["image"] * self.unit**2,
            max_frames=min(self.max_frames, pairs * self.temporal_patch),
        )

    def _size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) of every frame, in whole tokens, so that all together keep the bounds."""
        unit = self.unit
        if min(height, width) < unit:
            grow = max(unit / height, unit / width)
            height, width = int(height * grow), int(width * grow)
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise RequestError(
                f"A video of {width} x {height} pixels is too long and narrow; at most "
                f"{MAX_ASPECT} to 1 is taken."
            )
        # A single frame is shown twice.
        num_frames = max(num_frames, self.temporal_patch)
        most = min(self.max_pixels, num_frames * self.max_frame_pixels)
        # Python rounds halves to even, in time as well: 5 frames count as 4 here.
        counted = round(num_frames / self.temporal_patch) * self.temporal_patch
        rows, columns = round(height / unit), round(width / unit)
        pixels = counted * rows * columns * unit * unit
        if pixels > most:
            shrink = math.sqrt(num_frames * height * width / most)
            rows = max(1, math.floor(height / shrink / unit))
            columns = max(1, math.floor(width / shrink / unit))
        elif pixels < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (num_frames * height * width))
            rows, columns = math.ceil(height * grow / unit), math.ceil(width * grow / unit)
        return rows * unit, columns * unit


def from_config(reader: Reader) -> QwenVideoProcessor:
    """By video_preprocessor_config.json; what it leaves out is Qwen3-VL's."""
    size = reader.section("size") or reader
    return QwenVideoProcessor(
        unit=reader.integer("patch_size", MAX_WIDTH, 16)
        * reader.integer("merge_size", MAX_WIDTH, 2),
        temporal_patch=reader.integer("temporal_patch_size", MAX_WIDTH, 2),
        min_pixels=size.integer("shortest_edge", MAX_PIXELS, _SMALLEST),
        max_pixels=size.integer("longest_edge", MAX_PIXELS, _LARGEST),
        max_frame_pixels=MAX_PIXELS,
        fps=reader.number("fps", 2.0),
        min_frames=reader.integer("min_frames", MAX_FRAMES, 4),
        max_frames=reader.integer("max_frames", MAX_FRAMES, 768),
    )


def from_gguf(metadata: Mapping[str, Any]) -> QwenVideoProcessor:
    """By `clip.vision.*`, which has no word of videos: their bounds are Qwen3-VL's."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    merge = reader.integer("spatial_merge_size", MAX_WIDTH, 2)
    sizes = {"patch_size": reader.integer("patch_size", MAX_WIDTH), "merge_size": merge}
    return from_config(Reader(sizes, "GGUF metadata"))
