"""What every contender that encodes pictures is asked for."""

import argparse
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from protocol import timed

# A prime, so that the numbers which are compared come from all tokens and dimensions.
_EACH = 4099


class Pictures(ABC):
    """A contender with a vision tower: from decoded pixels to embeddings."""

    def __init__(self, args: argparse.Namespace):
        self._threads: int = args.threads

    @abstractmethod
    def _encode(self, pixels: np.ndarray) -> None:
        """uint8 [height, width, 3]; what is known of pictures before does not count."""

    @abstractmethod
    def _embeddings(self) -> np.ndarray:
        """Of the last picture: fp32 [tokens, numbers], of the tower's end and then of its deeper
        outputs."""

    def picture(self, side: int) -> dict[str, Any]:
        """A square of random pixels, always the same. `vector`: some of the embeddings' numbers,
        of length 1."""
        pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
        seconds = timed(lambda: self._encode(pixels))
        embeddings = self._embeddings()
        some = embeddings.ravel()[::_EACH].astype(np.float64)
        return {"seconds": seconds, "vector": (some / np.linalg.norm(some)).tolist()}
