"""What a family of vision models makes of a picture before its tower sees it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""[frames, height, width, 3], red, green and blue."""
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class ProcessedImage:
    """A picture in the size in which the model sees it."""

    pixels: Pixels
    grid: Grid
    """Frames, rows and columns of tokens."""
    in_a_row: bool = False
    """Positions of its tokens are those of text."""

    @property
    def num_tokens(self) -> int:
        frames, rows, columns = self.grid
        return frames * rows * columns

    @cached_property
    def content_hash(self) -> str:
        """Of the pixels and their shape: equal hashes mean equal embeddings."""
        digest = sha256(repr((self.pixels.shape, self.grid)).encode())
        digest.update(self.pixels.data)
        return digest.hexdigest()


class ImageProcessor(ABC):
    """Of one model; thread-safe."""

    token: str
    """Text of the token that stands for a piece of a picture; a prompt has it once for each
    picture until it is expanded."""
    placeholder: str
    """What templates that take strings get for a picture; has `token` once."""
    begin: str = ""
    end: str = ""
    """Texts of tokens that a prompt is given around a picture's."""

    @abstractmethod
    def process(self, picture: Pixels) -> ProcessedImage:
        """One frame [1, height, width, 3] in the model's size; RequestError where it has none."""

    @abstractmethod
    def patches(self, pixels: Pixels) -> tuple[npt.NDArray[np.float32], Grid]:
        """[patches, values] of processed pixels as the model's tower takes them, and how many
        frames, rows and columns of patches these are."""

    @abstractmethod
    def limited(self, max_tokens: int) -> "ImageProcessor":
        """The same with pictures of so many tokens at most."""
