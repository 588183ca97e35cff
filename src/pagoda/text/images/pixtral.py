"""Pictures for Mistral Small 3.1 and later: any size up to a longest edge. Between two rows of
tokens stands one of text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.text.images.qwen_vl import CLIP_MEAN, CLIP_STD, three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published.
_PATCH_SIZE, _MERGE, _LONGEST_EDGE = 14, 2, 1540


@dataclass(frozen=True)
class PixtralImageProcessor(Processor):
    patch_size: int
    merge: int
    longest_edge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_tokens: int | None = None

    token = "[IMG]"
    placeholder = "[IMG]"
    between = "[IMG_BREAK]"
    end = "[IMG_END]"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        unit = self.patch_size * self.merge
        rows, columns = self._grid(*opened.shape[1:3])
        size = (columns * unit, rows * unit)
        resized = [
            np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
            for frame in opened
        ]
        return Medium((Piece(np.stack(resized), _num_tokens(rows, columns), row=columns),))

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (values.astype(np.float32) / np.float32(255) - mean) / std
        frames, height, width, colors = colored.shape
        size, merge = self.patch_size, self.merge
        cut = colored.reshape(
            frames, height // (size * merge), merge, size, width // (size * merge), merge, size,
            colors,
        )  # fmt: skip
        # Rows and columns of tokens, then of patches in a token; in a patch color by color.
        ordered = cut.transpose(0, 1, 4, 2, 5, 7, 3, 6)
        return ordered.reshape(-1, colors * size * size), (frames, height // size, width // size)

    def limited(self, sizes: Sizes) -> "PixtralImageProcessor":
        return replace(self, max_tokens=sizes["image"])

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of tokens: as many as cover the picture, once it is no longer than the
        longest edge; if these are too many for the limit, the largest edge that keeps it."""
        unit = self.patch_size * self.merge
        for edge in range(self.longest_edge, 0, -1):
            shrink = max(height / edge, width / edge, 1.0)
            rows, columns = (
                max(1, -(-math.floor(side / shrink) // unit)) for side in (height, width)
            )
            if self.max_tokens is None or _num_tokens(rows, columns) <= self.max_tokens:
                break
        return rows, columns


def _num_tokens(rows: int, columns: int) -> int:
    """With a token between two rows."""
    return rows * (columns + 1) - 1


def from_config(reader: Reader) -> PixtralImageProcessor:
    """By processor_config.json and preprocessor_config.json; what they leave out is as
    published."""
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    return PixtralImageProcessor(
        patch_size=_patch_size(reader),
        merge=reader.integer("spatial_merge_size", MAX_WIDTH, _MERGE),
        longest_edge=size.integer("longest_edge", MAX_WIDTH, _LONGEST_EDGE),
        mean=three_numbers(reader, "image_mean", CLIP_MEAN),
        std=three_numbers(reader, "image_std", CLIP_STD),
    )


def _patch_size(reader: Reader) -> int:
    """A number, or that of either side."""
    if isinstance(reader.raw("patch_size"), Mapping):
        sides = reader.section("patch_size")
        assert sides is not None
        size = sides.integer("height", MAX_WIDTH)
        if sides.integer("width", MAX_WIDTH) != size:
            raise sides.error("width", f"must be the height, {size}")
        return size
    return reader.integer("patch_size", MAX_WIDTH, _PATCH_SIZE)


def from_gguf(metadata: Mapping[str, Any]) -> PixtralImageProcessor:
    """By `clip.vision.*`."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    return PixtralImageProcessor(
        patch_size=reader.integer("patch_size", MAX_WIDTH),
        merge=reader.integer("spatial_merge_size", MAX_WIDTH, _MERGE),
        longest_edge=reader.integer("image_size", MAX_WIDTH),
        mean=three_numbers(reader, "image_mean", CLIP_MEAN),
        std=three_numbers(reader, "image_std", CLIP_STD),
    )
