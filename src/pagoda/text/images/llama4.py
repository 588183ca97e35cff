"""Pictures for Llama 4: tiles of one size, over which a picture lies undistorted, and all of it
once more."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError
from pagoda.text.images.qwen_vl import three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published.
_SIDE, _PATCH_SIZE, _MERGE, _MAX_TILES = 336, 14, 2, 16
_MOST_TILES = 64


@dataclass(frozen=True)
class Llama4ImageProcessor(Processor):
    side: int
    """A tile's, in pixels."""
    patch_size: int
    merge: int
    max_tiles: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    token = "<|patch|>"
    placeholder = written = "<|image|>"
    encoder = "image"

    @property
    def num_tokens(self) -> int:
        """A tile's."""
        return (self.side // self.patch_size // self.merge) ** 2

    def process(self, opened: Values) -> Medium:
        image, side = Image.fromarray(opened[0]), self.side
        rows, columns = self._grid(image.height, image.width)
        canvas = Image.new("RGB", (columns * side, rows * side))
        canvas.paste(_resized(image, *self._fitting(image, rows, columns)))
        tiles = np.asarray(canvas).reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        tiles = tiles.reshape(-1, side, side, 3)
        text = ""
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, np.asarray(_resized(image, side, side))[None]])
            row = "<|tile_x_separator|>".join([self.token] * columns)
            text = (row + "<|tile_y_separator|>") * rows
        text = f"<|image_start|>{text}<|image|>{self.token}<|image_end|>"
        return Medium(tuple(Piece(tile[None], self.num_tokens) for tile in tiles), text)

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        # In bfloat16, as the models were trained.
        scaled = _bf16(values.astype(np.float32) * np.float32(1 / 255))
        colored = _bf16(_bf16(scaled - _bf16(mean)) / _bf16(std))
        size, merge = self.patch_size, self.merge
        count = self.side // size // merge
        cut = colored.reshape(count, merge, size, count, merge, size, 3)
        # Rows and columns of tokens, then of patches in a token; in a patch color by color.
        ordered = cut.transpose(0, 3, 1, 4, 6, 2, 5)
        return ordered.reshape(-1, 3 * size * size), (1, count * merge, count * merge)

    def limited(self, sizes: Sizes) -> "Llama4ImageProcessor":
        """With as many tiles as fit, but one at the least: RequestError where it does not."""
        most = sizes["image"] // self.num_tokens
        if not most:
            raise RequestError(
                f"An image takes at least {self.num_tokens} tokens of this model, and may have no "
                f"more than {sizes['image']} here (--image-max-tokens)."
            )
        # Beside several tiles stands the whole.
        return replace(self, max_tiles=max(1, min(self.max_tiles, most - 1)))

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of tiles: where the picture need not shrink, or else must shrink least,
        those over which it could grow least, and of these the fewest."""
        counts = range(1, self.max_tiles + 1)
        grids = [(rows, columns) for rows in counts for columns in counts
                 if rows * columns <= self.max_tiles]  # fmt: skip
        scales = {
            (rows, columns): min(
                np.float32(rows * self.side) / np.float32(height),
                np.float32(columns * self.side) / np.float32(width),
            )
            for rows, columns in grids
        }
        enough = [scale for scale in scales.values() if scale >= 1]
        chosen = min(enough) if enough else max(scales.values())
        fitting = [grid for grid in grids if scales[grid] == chosen]
        return min(fitting, key=lambda grid: grid[0] * grid[1])

    def _fitting(self, image: Image.Image, rows: int, columns: int) -> tuple[int, int]:
        """(height, width) within the tiles, undistorted, and no larger than a tile or the picture
        on the side that bounds it."""
        height = min(max(image.height, self.side), rows * self.side)
        width = min(max(image.width, self.side), columns * self.side)
        wider, higher = width / image.width, height / image.height
        if wider < higher:
            height = min(math.floor(image.height * wider), height)
        else:
            width = min(math.floor(image.width * higher), width)
        return max(height, 1), max(width, 1)


def _resized(image: Image.Image, height: int, width: int) -> Image.Image:
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The nearest numbers that bfloat16 has, halves to even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def from_config(reader: Reader) -> Llama4ImageProcessor:
    """By processor_config.json and preprocessor_config.json; what they leave out is as
    published."""
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    side = size.integer("height", MAX_WIDTH, _SIDE)
    if size.integer("width", MAX_WIDTH, side) != side:
        raise size.error("width", f"must be the height, {side}")
    return Llama4ImageProcessor(
        side=side,
        patch_size=reader.integer("patch_size", MAX_WIDTH, _PATCH_SIZE),
        merge=int(1 / reader.number("pixel_shuffle_ratio", 1 / _MERGE)),
        max_tiles=reader.integer("max_patches", _MOST_TILES, _MAX_TILES),
        mean=three_numbers(reader, "image_mean"),
        std=three_numbers(reader, "image_std"),
    )


def from_gguf(metadata: Mapping[str, Any]) -> Llama4ImageProcessor:
    """By `clip.vision.*`."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    return Llama4ImageProcessor(
        side=reader.integer("image_size", MAX_WIDTH),
        patch_size=reader.integer("patch_size", MAX_WIDTH),
        merge=reader.integer("projector.scale_factor", MAX_WIDTH, _MERGE),
        max_tiles=_MAX_TILES,
        mean=three_numbers(reader, "image_mean"),
        std=three_numbers(reader, "image_std"),
    )
