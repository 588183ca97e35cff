"""Pictures for Phi-4-multimodal: as many tiles of one size as cover a picture, which grows to fill
them, and all of it once more."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError
from pagoda.text.images.gemma3 import cut
from pagoda.text.images.internvl import nearest_grid
from pagoda.text.images.qwen_vl import three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published.
_SIDE, _PATCH_SIZE, _MAX_TILES, _HALF = 448, 14, 36, (0.5, 0.5, 0.5)
_MERGE, _WHITE, _MOST_TILES = 2, 255, 64
_LEAST_PIXELS = 10
# Of Keys' cubic convolution (IEEE TASSP 29, 1981), as torch has it.
_SHARPNESS = -0.75


@dataclass(frozen=True)
class Phi4ImageProcessor(Processor):
    token: str
    placeholder: str
    side: int
    """A tile's, in pixels."""
    patch_size: int
    max_tiles: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    encoder = "image"

    def process(self, opened: Values) -> Medium:
        image = Image.fromarray(opened[0])
        height, width = self._fitting(image.height, image.width)
        if min(height, width) < _LEAST_PIXELS:
            raise RequestError(
                f"An image of {image.width} x {image.height} pixels would become one of {width} x "
                f"{height}, too narrow for this model; cut it into parts.",
                "messages",
            )
        resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        rows, columns = (-(-pixels // self._unit) for pixels in (height, width))
        return Medium((Piece(resized[None], rows * (columns + 1) + 1 + self._tile_tokens),))

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        """Those of the whole, then tile by tile; the grid is that of the patches which the picture
        touches, and where it is odd, tiles have a white row or column more."""
        height, width = values.shape[1:3]
        side, size, unit = self.side, self.patch_size, self._unit
        canvas = np.full((-(-height // side) * side, -(-width // side) * side, 3), _WHITE, np.uint8)
        canvas[:height, :width] = values[0]
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (canvas.astype(np.float32) / np.float32(255) - mean) / std
        lines = _sampled(colored, side).swapaxes(0, 1)
        parts = [_sampled(lines, side).swapaxes(0, 1)]
        colored = colored[: -(-height // unit) * unit, : -(-width // unit) * unit]
        parts += [
            colored[top : top + side, left : left + side]
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]
        grid = (1, -(-height // size), -(-width // size))
        return np.concatenate([cut(part[None], size)[0] for part in parts]), grid

    def limited(self, sizes: Sizes) -> "Phi4ImageProcessor":
        """With as many tiles as fit, but one at the least: RequestError where it does not."""
        most, own = sizes["image"], self._tile_tokens
        if most < 2 * own + 1:
            raise RequestError(
                f"An image takes up to {2 * own + 1} tokens of this model in a single tile, and "
                f"may have no more than {most} here (--image-max-tokens)."
            )
        return replace(self, max_tiles=min(self.max_tiles, (most - own - 1) // own))

    @property
    def _unit(self) -> int:
        """The side of a token, in pixels."""
        return self.patch_size * _MERGE

    @property
    def _tile_tokens(self) -> int:
        """Those of a full tile, with the ends of its rows."""
        across = self.side // self._unit
        return across * (across + 1)

    def _fitting(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) that fill the tiles in one direction, undistorted."""
        rows, columns = (-(-pixels // self.side) for pixels in (height, width))
        if rows * columns > self.max_tiles:
            rows, columns = nearest_grid(height, width, self.side, self.max_tiles)
        wider, higher = columns * self.side / width, rows * self.side / height
        if wider < higher:
            return int(height * wider), columns * self.side
        return rows * self.side, int(width * higher)


def _sampled(x: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """`count` of the first dimension's values, cubic between four neighbours each; what lies
    between these is not looked at."""
    places = (np.arange(count, dtype=np.float32) + 0.5) * np.float32(len(x) / count) - 0.5
    first = np.floor(places)
    taken = np.zeros((count, *x.shape[1:]), np.float32)
    for step in range(-1, 3):
        weights = _cubic(np.abs(places - first - step))
        rows = np.clip(first.astype(np.int64) + step, 0, len(x) - 1)
        taken += weights.astype(np.float32)[:, None, None] * x[rows]
    return taken


def _cubic(apart: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """How much a neighbour so far away counts."""
    a = _SHARPNESS
    near = ((a + 2) * apart - (a + 3)) * apart**2 + 1
    far = ((a * apart - 5 * a) * apart + 8 * a) * apart - 4 * a
    return np.where(apart <= 1, near, far)


def from_config(reader: Reader) -> Phi4ImageProcessor:
    """By the settings of a checkpoint for transformers' class; what they leave out is as
    published."""
    return _processor(reader, "<|image|>")


def published_from_config(reader: Reader) -> Phi4ImageProcessor:
    """By those of a checkpoint for Microsoft's own code."""
    return _processor(reader, "<|endoftext10|>")


def _processor(reader: Reader, token: str) -> Phi4ImageProcessor:
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    side = size.integer("height", MAX_WIDTH, _SIDE)
    if size.integer("width", MAX_WIDTH, side) != side:
        raise size.error("width", f"must be the height, {side}")
    patch = reader.integer("patch_size", MAX_WIDTH, _PATCH_SIZE)
    if side % (_MERGE * patch):
        raise size.error("height", f"must be a multiple of two patches, {_MERGE * patch} pixels")
    return Phi4ImageProcessor(
        token=token,
        placeholder=token,
        side=side,
        patch_size=patch,
        max_tiles=reader.integer("dynamic_hd", _MOST_TILES, _MAX_TILES),
        mean=three_numbers(reader, "image_mean", _HALF),
        std=three_numbers(reader, "image_std", _HALF),
    )
