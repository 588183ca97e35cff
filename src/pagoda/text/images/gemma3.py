"""Pictures for Gemma 3: all of one size, whatever their shape."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.families.gemma3_vision import PATCH_SIZE
from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError, UnsupportedModelError
from pagoda.text.images.qwen_vl import three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published.
_SIDE, _TOKENS = 896, 256


@dataclass(frozen=True)
class Gemma3ImageProcessor(Processor):
    side: int
    """A picture's, in pixels."""
    num_tokens: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_tokens: int

    token = "<image_soft_token>"
    placeholder = written = "<start_of_image>"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        if self.num_tokens > self.max_tokens:
            raise RequestError(
                f"An image takes {self.num_tokens} tokens of this model, and may have no more than "
                f"{self.max_tokens} here (--image-max-tokens)."
            )
        size = (self.side, self.side)
        resized = [
            np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BILINEAR))
            for frame in opened
        ]
        text = f"\n\n{self.written}{self.token}<end_of_image>\n\n"
        return Medium((Piece(np.stack(resized), self.num_tokens),), text)

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (values.astype(np.float32) / np.float32(255) - mean) / std
        return cut(colored, PATCH_SIZE)

    def limited(self, sizes: Sizes) -> "Gemma3ImageProcessor":
        return replace(self, max_tokens=min(self.max_tokens, sizes["image"]))


def cut(colored: npt.NDArray[np.float32], size: int) -> tuple[npt.NDArray[np.float32], Grid]:
    """[frames, height, width, 3] -> patches of `size` * `size` pixels in the order of reading, each
    color by color, and their grid."""
    frames, height, width, colors = colored.shape
    grid = (frames, height // size, width // size)
    parts = colored.reshape(frames, grid[1], size, grid[2], size, colors)
    return parts.transpose(0, 1, 3, 5, 2, 4).reshape(-1, colors * size**2), grid


def from_config(reader: Reader) -> Gemma3ImageProcessor:
    """By preprocessor_config.json or processor_config.json; what it leaves out is as published."""
    if reader.flag("do_pan_and_scan", False):
        raise UnsupportedModelError(
            "The preprocessor's do_pan_and_scan is true: parts of a picture would be read beside "
            "it, which is not supported. Set it to false, as published."
        )
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    side = size.integer("height", MAX_WIDTH, _SIDE)
    if size.integer("width", MAX_WIDTH, side) != side:
        raise size.error("width", f"must be the height, {side}")
    tokens = reader.integer("image_seq_length", MAX_WIDTH, _TOKENS)
    mean, std = (three_numbers(reader, name) for name in ("image_mean", "image_std"))
    return Gemma3ImageProcessor(side, tokens, mean, std, tokens)


def from_gguf(metadata: Mapping[str, Any]) -> Gemma3ImageProcessor:
    """By `clip.vision.*`."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    side = reader.integer("image_size", MAX_WIDTH)
    merge = reader.integer("projector.scale_factor", MAX_WIDTH, 4)
    tokens = (side // PATCH_SIZE // merge) ** 2
    mean, std = (three_numbers(reader, name) for name in ("image_mean", "image_std"))
    return Gemma3ImageProcessor(side, tokens, mean, std, tokens)
