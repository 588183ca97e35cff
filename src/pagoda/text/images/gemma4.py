"""Pictures for Gemma 4: as large as a number of tokens allows, whole squares of patches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.text.images.base import Grid, ImageProcessor, Pixels, ProcessedImage

_MAX_TOKENS = 1 << 16
# As published; some 800 x 800 pixels.
_TOKENS = 280


@dataclass(frozen=True)
class Gemma4ImageProcessor(ImageProcessor):
    patch_size: int
    merge: int
    """Patches on the side of a token."""
    max_tokens: int

    token = "<|image|>"
    placeholder = "<|image|>"
    begin = "<|image>"
    end = "<image|>"

    def process(self, picture: Pixels) -> ProcessedImage:
        frames, height, width, _ = picture.shape
        unit = self.patch_size * self.merge
        rows, columns = fitting_grid(height, width, unit, self.max_tokens)
        size = (columns * unit, rows * unit)
        resized = [
            np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
            for frame in picture
        ]
        return ProcessedImage(np.stack(resized), (frames, rows, columns), in_a_row=True)

    def patches(self, pixels: Pixels) -> tuple[npt.NDArray[np.float32], Grid]:
        frames, height, width, colors = pixels.shape
        size = self.patch_size
        grid = (frames, height // size, width // size)
        values = pixels.astype(np.float32) / np.float32(255)
        cut = values.reshape(frames, grid[1], size, grid[2], size, colors)
        return cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, size * size * colors), grid

    def limited(self, max_tokens: int) -> "Gemma4ImageProcessor":
        return replace(self, max_tokens=min(self.max_tokens, max_tokens))


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
