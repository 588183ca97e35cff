"""Pictures for Gemma 4: as large as a number of tokens allows, whole squares of patches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

_MAX_TOKENS = 1 << 16
# As published; some 800 x 800 pixels.
_TOKENS = 280


@dataclass(frozen=True)
class Gemma4ImageProcessor(Processor):
    patch_size: int
    merge: int
    """Patches on the side of a token."""
    max_tokens: int

    token = "<|image|>"
    placeholder = "<|image|>"
    begin = "<|image>"
    end = "<image|>"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        frames, height, width, _ = opened.shape
        unit = self.patch_size * self.merge
        rows, columns = fitting_grid(height, width, unit, self.max_tokens)
        size = (columns * unit, rows * unit)
        resized = [
            np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
            for frame in opened
        ]
        return Medium((Piece(np.stack(resized), frames * rows * columns),))

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        frames, height, width, colors = values.shape
        size = self.patch_size
        grid = (frames, height // size, width // size)
        colored = values.astype(np.float32) / np.float32(255)
        cut = colored.reshape(frames, grid[1], size, grid[2], size, colors)
        return cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size * size * colors), grid

    def limited(self, sizes: Sizes) -> "Gemma4ImageProcessor":
        return replace(self, max_tokens=min(self.max_tokens, sizes["image"]))


def fitting_grid(height: int, width: int, unit: int, max_tokens: int) -> tuple[int, int]:
    """(rows, columns) of tokens of `unit` pixels: the largest picture of its shape that has no more
    than `max_tokens`; of a strip one row or column."""
    growth = math.sqrt(max_tokens * unit**2 / (height * width))
    rows, columns = math.floor(growth * height / unit), math.floor(growth * width / unit)
    if not rows:
        rows, columns = 1, min(width // height, max_tokens)
    elif not columns:
        rows, columns = min(height // width, max_tokens), 1
    return rows, columns


def from_config(reader: Reader) -> Gemma4ImageProcessor:
    """By preprocessor_config.json or processor_config.json; what it leaves out is as published."""
    return Gemma4ImageProcessor(
        patch_size=reader.integer("patch_size", MAX_WIDTH, 16),
        merge=reader.integer("pooling_kernel_size", MAX_WIDTH, 3),
        max_tokens=reader.integer("max_soft_tokens", _MAX_TOKENS, _TOKENS),
    )


def from_gguf(metadata: Mapping[str, Any]) -> Gemma4ImageProcessor:
    """By `clip.vision.*`, which does not say how many tokens a picture has."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    return Gemma4ImageProcessor(
        patch_size=reader.integer("patch_size", MAX_WIDTH),
        merge=reader.integer("projector.scale_factor", MAX_WIDTH, 3),
        max_tokens=_TOKENS,
    )
