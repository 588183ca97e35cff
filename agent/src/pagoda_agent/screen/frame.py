"""One picture of the controlled computer's screen."""

import io
import time
from dataclasses import dataclass, field
from functools import cached_property

from PIL import Image, ImageStat

from pagoda_agent.input.actions import Point

# Screens are compared on cells of so many pixels each way.
_CELL = 8
# Mean and spread of brightness (0 to 255) below which a picture counts as black.
_DARK = 6.0


@dataclass(frozen=True, eq=False)
class Frame:
    """RGB pixels and when they arrived; positions of actions are shares of `size`."""

    image: Image.Image
    number: int
    """Counts up with every frame of a driver."""
    received_at: float = field(default_factory=time.monotonic)
    stale: bool = False
    """Nothing newer came although it was asked for; a screen without changes may send none."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.image.size

    def scaled_size(self, long_edge: int) -> tuple[int, int]:
        """Its size once its longer edge is `long_edge` at most."""
        longest = max(self.size)
        if longest <= long_edge:
            return self.size
        width, height = (max(1, round(value * long_edge / longest)) for value in self.size)
        return width, height

    def encoded(
        self, kind: str = "JPEG", size: tuple[int, int] | None = None, quality: int = 85
    ) -> bytes:
        """The picture as JPEG or PNG, in its own size or another (width, height)."""
        image = self.image
        if size is not None and size != image.size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        out = io.BytesIO()
        if kind == "JPEG":
            image.save(out, kind, quality=quality)
        else:
            image.save(out, kind, compress_level=1)
        return out.getvalue()

    @cached_property
    def cells(self) -> Image.Image:
        """The mean colour of each cell, one pixel each."""
        return self.image.reduce(_CELL)

    def scaled(self, size: tuple[int, int]) -> "Frame":
        """As it looks when it was recorded in `size`."""
        if size == self.size:
            return self
        image = self.image.resize(size, Image.Resampling.LANCZOS)
        return Frame(image, self.number, self.received_at, self.stale)

    def is_black(self) -> bool:
        """Whether there is nothing to see, as on a sleeping computer."""
        grey = self.image.convert("L").resize((64, 36), Image.Resampling.BOX)
        stat = ImageStat.Stat(grey)
        return stat.mean[0] < _DARK and stat.stddev[0] < _DARK


def pixel(at: Point, size: tuple[int, int]) -> tuple[int, int]:
    """The pixel (x, y) of a picture of `size` (width, height) in which a position lies."""
    # A share that was computed from a pixel may come out a hair short of it.
    x, y = (min(int(share * edge + 1e-6), edge - 1) for share, edge in zip(at, size, strict=True))
    return x, y
