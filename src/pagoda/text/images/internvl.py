"""Pictures for InternVL 3 and 3.5: as many tiles of one size as nearly keep a picture's shape, and
all of it once more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError
from pagoda.text.images.qwen_vl import three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published.
_SIDE, _PATCH_SIZE, _MERGE, _MAX_TILES = 448, 14, 2, 12
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_TILES = 64


@dataclass(frozen=True)
class InternVLImageProcessor(Processor):
    side: int
    """A tile's, in pixels."""
    num_tokens: int
    """A tile's."""
    patch_size: int
    min_tiles: int
    max_tiles: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    token = "<IMG_CONTEXT>"
    placeholder = "<IMG_CONTEXT>\n"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        image = Image.fromarray(opened[0])
        size = (image.height, image.width)
        rows, columns = nearest_grid(*size, self.side, self.max_tiles, self.min_tiles)
        whole = self._resized(image, rows, columns)
        tiles = whole.reshape(rows, self.side, columns, self.side, 3).swapaxes(1, 2)
        tiles = tiles.reshape(-1, self.side, self.side, 3)
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, self._resized(image, 1, 1)[None]])
        text = f"<img>{self.token * len(tiles)}</img>"
        return Medium(tuple(Piece(tile[None], self.num_tokens) for tile in tiles), text)

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (values.astype(np.float32) / np.float32(255) - mean) / std
        size, merge = self.patch_size, self._merge
        count = self.side // size // merge
        cut = colored.reshape(count, merge, size, count, merge, size, 3)
        # Rows and columns of tokens, then of patches in a token; in a patch color by color.
        ordered = cut.transpose(0, 3, 1, 4, 6, 2, 5)
        return ordered.reshape(-1, 3 * size * size), (1, count * merge, count * merge)

    @property
    def _merge(self) -> int:
        return self.side // self.patch_size // isqrt(self.num_tokens)

    def limited(self, sizes: Sizes) -> "InternVLImageProcessor":
        """With as many tiles as fit, but one at the least: RequestError where it does not."""
        most = sizes["image"] // self.num_tokens
        if not most:
            raise RequestError(
                f"An image takes at least {self.num_tokens} tokens of this model, and may have no "
                f"more than {sizes['image']} here (--image-max-tokens)."
            )
        # Beside several tiles stands the whole.
        tiles = max(1, min(self.max_tiles, most - 1))
        return replace(self, max_tiles=tiles, min_tiles=min(self.min_tiles, tiles))

    def _resized(self, image: Image.Image, rows: int, columns: int) -> Values:
        size = (columns * self.side, rows * self.side)
        return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def nearest_grid(height: int, width: int, side: int, most: int, least: int = 1) -> tuple[int, int]:
    """(rows, columns) of `least` to `most` tiles: of those whose shape is nearest to the picture's
    the largest of which it fills more than half."""
    best, nearest = (1, 1), float("inf")
    counts = range(1, most + 1)
    grids = [(row, column) for column in counts for row in counts]
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        tiles = rows * columns
        if not least <= tiles <= most:
            continue
        apart = abs(width / height - columns / rows)
        filled = width * height > 0.5 * side**2 * tiles
        if apart < nearest or (apart == nearest and filled):
            best, nearest = (rows, columns), apart
    return best


def from_config(reader: Reader) -> InternVLImageProcessor:
    """By processor_config.json and preprocessor_config.json; what they leave out is as
    published."""
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    side = size.integer("height", MAX_WIDTH, _SIDE)
    if size.integer("width", MAX_WIDTH, side) != side:
        raise size.error("width", f"must be the height, {side}")
    default = (_SIDE // _PATCH_SIZE // _MERGE) ** 2
    # transformers' processor crops, whatever the image processor's file says.
    return InternVLImageProcessor(
        side=side,
        num_tokens=reader.integer("image_seq_length", MAX_WIDTH, default),
        patch_size=_PATCH_SIZE,
        min_tiles=reader.integer("min_patches", _MOST_TILES, 1),
        max_tiles=reader.integer("max_patches", _MOST_TILES, _MAX_TILES),
        mean=three_numbers(reader, "image_mean", _MEAN),
        std=three_numbers(reader, "image_std", _STD),
    )


def from_gguf(metadata: Mapping[str, Any]) -> InternVLImageProcessor:
    """By `clip.vision.*`."""
    reader = Reader(metadata, "GGUF metadata", "clip.vision.")
    side, patch = reader.integer("image_size", MAX_WIDTH), reader.integer("patch_size", MAX_WIDTH)
    merge = reader.integer("projector.scale_factor", MAX_WIDTH, _MERGE)
    return InternVLImageProcessor(
        side=side,
        num_tokens=(side // patch // merge) ** 2,
        patch_size=patch,
        min_tiles=reader.integer("preproc_min_tiles", _MOST_TILES, 1),
        max_tiles=reader.integer("preproc_max_tiles", _MOST_TILES, _MAX_TILES),
        mean=three_numbers(reader, "image_mean", _MEAN),
        std=three_numbers(reader, "image_std", _STD),
    )
