"""Videos for Qwen2-VL and Qwen2.5-VL (arXiv 2409.12191, 2502.13923): pairs of frames in one run,
whose times are in their positions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.text.images.film import Film, FrameChoice
from pagoda.text.images.qwen_video import MAX_FRAMES, PAIR_TOKENS
from pagoda.text.images.qwen_vl import MAX_PIXELS, fitting_size
from pagoda.text.images.video import VideoProcessor, first_of, in_runs, resized
from pagoda.text.media.base import Medium, Piece, Sizes, Values

# video_processing_qwen2_vl.py; published checkpoints leave a frame as large as a picture.
_SMALLEST = 128 * 28 * 28
_LARGEST = 768 * 28 * 28
_GGUF_SMALLEST, _GGUF_LARGEST = 56 * 56, 16384 * 28 * 28


@dataclass(frozen=True)
class Qwen2VideoProcessor(VideoProcessor):
    unit: int
    """Pixels of a token's side."""
    temporal_patch: int
    """Frames that become one row of tokens."""
    min_pixels: int
    max_pixels: int
    """Pixels of a frame."""
    max_all_pixels: int
    """Pixels of one frame of each row together."""
    fps: float
    min_frames: int
    max_frames: int

    token = "<|video_pad|>"
    placeholder = "<|vision_start|><|video_pad|><|vision_end|>"

    def choose(self, num_frames: int, fps: float, choice: FrameChoice) -> list[int]:
        step = self.temporal_patch
        most = min(self.max_frames, num_frames)
        count = choice.num_frames
        if count is None or choice.fps is not None:
            wanted = num_frames / fps * (choice.fps or self.fps)
            wanted = min(max(wanted, self.min_frames), most // step * step)
            count = int(wanted) // step * step if count is None else min(count, int(wanted))
        # Python rounds halves to even, and so does what the models' own processor rounds with.
        count = max(1, min(max(step, round(count / step) * step), most))
        return [index * num_frames // count for index in range(count)]

    def frames(self, frames: Iterator[Values], indices: Sequence[int], film: Film) -> Medium:
        first = first_of(frames)
        steps = -(-len(indices) // self.temporal_patch)
        most = min(self.max_pixels, self.max_all_pixels // steps)
        least = min(self.min_pixels, most)
        height, width = first.shape[1:3]
        height, width = fitting_size(height, width, self.unit, least, most)
        shown = in_runs(resized(chain([first], frames), height, width), self.temporal_patch)
        grid = (1, height // self.unit, width // self.unit)
        # Of all that the film lasts, not to the last frame that is looked at.
        seconds = self.temporal_patch * film.num_frames / film.fps / len(indices)
        pieces = tuple(
            Piece(run, grid[1] * grid[2], grid, seconds_on=seconds if number else None)
            for number, run in enumerate(shown)
        )
        return Medium(pieces, self.token * len(pieces))

    def limited(self, sizes: Sizes) -> "Qwen2VideoProcessor":
        tokens, area = sizes["video"], self.unit**2
        steps = max(1, tokens // PAIR_TOKENS)
        return replace(
            self,
            max_pixels=min(self.max_pixels, sizes["image"] * area),
            max_all_pixels=tokens * area,
            max_frames=min(self.max_frames, steps * self.temporal_patch),
        )


def from_config(reader: Reader) -> Qwen2VideoProcessor:
    """By video_preprocessor_config.json or what there is for pictures; what it leaves out is
    Qwen2-VL's."""
    size = reader.section("size") or reader
    smallest = size.integer("shortest_edge", MAX_PIXELS, _SMALLEST)
    largest = size.integer("longest_edge", MAX_PIXELS, _LARGEST)
    return Qwen2VideoProcessor(
        unit=reader.integer("patch_size", MAX_WIDTH, 14)
        * reader.integer("merge_size", MAX_WIDTH, 2),
        temporal_patch=reader.integer("temporal_patch_size", MAX_WIDTH, 2),
        min_pixels=reader.integer("min_pixels", MAX_PIXELS, smallest),
        max_pixels=reader.integer("max_pixels", MAX_PIXELS, largest),
        max_all_pixels=MAX_PIXELS,
        fps=reader.number("fps", 2.0),
        min_frames=reader.integer("min_frames", MAX_FRAMES, 4),
        max_frames=reader.integer("max_frames", MAX_FRAMES, 768),
    )


def from_gguf(metadata: Mapping[str, Any]) -> Qwen2VideoProcessor:
    """By `clip.vision.*`, which has no word of videos: their bounds are the published ones."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    sizes = {
        "patch_size": reader.integer("patch_size", MAX_WIDTH),
        "merge_size": reader.integer("spatial_merge_size", MAX_WIDTH, 2),
        "min_pixels": _GGUF_SMALLEST,
        "max_pixels": _GGUF_LARGEST,
    }
    return from_config(Reader(sizes, "GGUF metadata"))
