"""Pictures for Qwen2-VL to Qwen3.5: any size, as long as it is whole tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

MAX_PIXELS = 1 << 40
MAX_ASPECT = 200


@dataclass(frozen=True)
class QwenImageProcessor(Processor):
    patch_size: int
    temporal_patch: int
    merge: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    token = "<|image_pad|>"
    placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        frames, height, width, _ = opened.shape
        unit = self.patch_size * self.merge
        new_height, new_width = fitting_size(height, width, unit, self.min_pixels, self.max_pixels)
        size = (new_width, new_height)
        resized = [
            np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))
            for frame in opened
        ]
        grid = (-(-frames // self.temporal_patch), new_height // unit, new_width // unit)
        return Medium((Piece(np.stack(resized), math.prod(grid), grid),))

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (values.astype(np.float32) / np.float32(255) - mean) / std
        missing = -len(colored) % self.temporal_patch
        # A picture is a film of one frame, and a film's last frame stands still.
        colored = np.concatenate([colored, np.repeat(colored[-1:], missing, axis=0)])
        frames, height, width, colors = colored.shape
        size, merge = self.patch_size, self.merge
        cut = colored.reshape(
            frames // self.temporal_patch, self.temporal_patch,
            height // (size * merge), merge, size,
            width // (size * merge), merge, size, colors,
        )  # fmt: skip
        # Frames, rows and columns of tokens, then of patches in a token; in a patch the color,
        # the frame, the row and the column of each value.
        ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        grid = (frames // self.temporal_patch, height // size, width // size)
        return ordered.reshape(-1, colors * self.temporal_patch * size * size), grid

    def limited(self, sizes: Sizes) -> "QwenImageProcessor":
        most = sizes["image"] * (self.patch_size * self.merge) ** 2
        return replace(
            self, max_pixels=min(self.max_pixels, most), min_pixels=min(self.min_pixels, most)
        )


def fitting_size(
    height: int, width: int, unit: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) in multiples of `unit` with a product between the bounds, and nearly the
    shape it was. RequestError for a strip."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise RequestError(
            f"An image of {width} x {height} pixels is too long and narrow; at most "
            f"{MAX_ASPECT} to 1 is taken."
        )
    # Python rounds halves to even, and so do those that the models were trained with.
    rows, columns = round(height / unit), round(width / unit)
    if rows * columns * unit * unit > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(1, math.floor(height / shrink / unit))
        columns = max(1, math.floor(width / shrink / unit))
    elif rows * columns * unit * unit < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows, columns = math.ceil(height * grow / unit), math.ceil(width * grow / unit)
    return rows * unit, columns * unit


@dataclass(frozen=True)
class _Published:
    """What checkpoints and GGUFs may leave out."""

    patch_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


CLIP_MEAN, CLIP_STD = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
_QWEN3 = _Published(16, 1 << 16, 1 << 24, (0.5,) * 3, (0.5,) * 3)
# image_processing_qwen2_vl.py
_QWEN2 = _Published(14, 56 * 56, 1280 * 28 * 28, CLIP_MEAN, CLIP_STD)
# A GGUF has no bounds: those of the published preprocessor_config.json.
_QWEN2_GGUF = replace(_QWEN2, max_pixels=16384 * 28 * 28)


def from_config(reader: Reader) -> QwenImageProcessor:
    """By preprocessor_config.json; what it leaves out is Qwen3-VL's."""
    return _from_config(reader, _QWEN3)


def qwen2_from_config(reader: Reader) -> QwenImageProcessor:
    """By preprocessor_config.json; what it leaves out is Qwen2-VL's."""
    return _from_config(reader, _QWEN2)


def _from_config(reader: Reader, published: _Published) -> QwenImageProcessor:
    size = reader.section("size") or reader
    smallest = size.integer("shortest_edge", MAX_PIXELS, published.min_pixels)
    largest = size.integer("longest_edge", MAX_PIXELS, published.max_pixels)
    return QwenImageProcessor(
        patch_size=reader.integer("patch_size", MAX_WIDTH, published.patch_size),
        temporal_patch=reader.integer("temporal_patch_size", MAX_WIDTH, 2),
        merge=reader.integer("merge_size", MAX_WIDTH, 2),
        min_pixels=reader.integer("min_pixels", MAX_PIXELS, smallest),
        max_pixels=reader.integer("max_pixels", MAX_PIXELS, largest),
        mean=three_numbers(reader, "image_mean", published.mean),
        std=three_numbers(reader, "image_std", published.std),
    )


def from_gguf(metadata: Mapping[str, Any]) -> QwenImageProcessor:
    """By `clip.vision.*`; bounds that it leaves out are Qwen3-VL's."""
    return _from_gguf(metadata, _QWEN3)


def qwen2_from_gguf(metadata: Mapping[str, Any]) -> QwenImageProcessor:
    """By `clip.vision.*`; bounds that it leaves out are Qwen2.5-VL's."""
    return _from_gguf(metadata, _QWEN2_GGUF)


def _from_gguf(metadata: Mapping[str, Any], published: _Published) -> QwenImageProcessor:
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    return QwenImageProcessor(
        patch_size=reader.integer("patch_size", MAX_WIDTH),
        temporal_patch=2,
        merge=reader.integer("spatial_merge_size", MAX_WIDTH, 2),
        min_pixels=reader.integer("image_min_pixels", MAX_PIXELS, published.min_pixels),
        max_pixels=reader.integer("image_max_pixels", MAX_PIXELS, published.max_pixels),
        mean=three_numbers(reader, "image_mean", published.mean),
        std=three_numbers(reader, "image_std", published.std),
    )


def three_numbers(
    reader: Reader, name: str, published: tuple[float, ...] = (0.5, 0.5, 0.5)
) -> tuple[float, ...]:
    """`image_mean` or `image_std`, or `published` where the file leaves it out."""
    values = reader.raw(name)
    if values is None:
        return published
    numbers = isinstance(values, list) and all(isinstance(value, int | float) for value in values)
    if not numbers or len(values) != 3 or (name == "image_std" and min(values) <= 0):
        raise reader.error(name, f"must be three numbers, not {values!r}")
    return tuple(float(value) for value in values)
