"""Pictures for Gemma 3n: all of one size, whatever their shape, pixel by pixel."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from pagoda.arch.mobilenet import MAX_SIDE
from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.base.errors import RequestError, UnsupportedModelError
from pagoda.text.images.qwen_vl import three_numbers
from pagoda.text.media.base import Grid, Medium, Piece, Processor, Sizes, Values

# As published. The convolutions take other sides, too, of which tokens are whole squares of pixels.
_TOKENS, _SIDE_UNIT = 256, 256


@dataclass(frozen=True)
class Gemma3nImageProcessor(Processor):
    side: int
    """A picture's, in pixels."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_tokens: int

    token = placeholder = "<image_soft_token>"
    end = "<end_of_image>"
    encoder = "image"

    def process(self, opened: Values) -> Medium:
        # The last one is the word that ends a picture.
        num_tokens = _TOKENS + 1
        if num_tokens > self.max_tokens:
            raise RequestError(
                f"An image takes {num_tokens} tokens of this model, and may have no more than "
                f"{self.max_tokens} here (--image-max-tokens)."
            )
        size = (self.side, self.side)
        resized = Image.fromarray(opened[0]).resize(size, Image.Resampling.BILINEAR)
        piece = Piece(np.asarray(resized)[None], num_tokens, ends=True)
        return Medium((piece,), f"\n\n<start_of_image>{self.token}\n\n")

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        mean, std = (np.array(three, np.float32) for three in (self.mean, self.std))
        colored = (values.astype(np.float32) / np.float32(255) - mean) / std
        frames, height, width, _ = values.shape
        return colored.reshape(-1, 3), (frames, height, width)

    def limited(self, sizes: Sizes) -> "Gemma3nImageProcessor":
        return replace(self, max_tokens=min(self.max_tokens, sizes["image"]))


def from_config(reader: Reader) -> Gemma3nImageProcessor:
    """By preprocessor_config.json or processor_config.json; what it leaves out is as published."""
    size = reader.section("size") or Reader({}, "preprocessor_config.json")
    side = size.integer("height", MAX_WIDTH, MAX_SIDE)
    if size.integer("width", MAX_WIDTH, side) != side or side % _SIDE_UNIT or side > MAX_SIDE:
        raise size.error("height", f"must be the width and one of 256, 512 and {MAX_SIDE}")
    tokens = reader.integer("image_seq_length", MAX_WIDTH, _TOKENS)
    if tokens != _TOKENS:
        raise UnsupportedModelError(
            f"The preprocessor's image_seq_length is {tokens}; the tower of Gemma 3n makes "
            f"{_TOKENS} tokens of each picture."
        )
    if not reader.flag("do_normalize", False):
        return Gemma3nImageProcessor(side, (0.0,) * 3, (1.0,) * 3, _TOKENS + 1)
    mean, std = (three_numbers(reader, name) for name in ("image_mean", "image_std"))
    return Gemma3nImageProcessor(side, mean, std, _TOKENS + 1)
