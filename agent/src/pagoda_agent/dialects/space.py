"""What the numbers that a model writes for positions mean."""

import math
from enum import StrEnum

from pagoda_agent.base.errors import ActionError
from pagoda_agent.input.actions import Point

# Edges of the patches that Qwen2.5-VL and UI-TARS 1.5 cut a picture into, two by two, and the
# areas that their image processors keep it within (Qwen2.5-VL's preprocessor_config.json).
PATCH = 28
_LEAST_AREA = 56 * 56
_MOST_AREA = 16384 * 28 * 28


class Space(StrEnum):
    """A setting of the model's profile; it is never guessed from a value.

    `screen` is the size of the picture that was sent.
    """

    THOUSAND = "1000"
    """0 to 1000 from edge to edge."""
    NINES = "999"
    """0 to 999 from edge to edge; 1000, which such models write too, is the edge."""
    UNIT = "unit"
    """0 to 1 from edge to edge."""
    PIXELS = "pixels"
    """Pixels of the picture, counted from 0."""
    RESIZED = "resized"
    """Pixels of the picture after the model's own resizing to multiples of 28."""

    def most(self, screen: tuple[int, int]) -> tuple[float, float]:
        """The greatest x and y that are on the screen."""
        match self:
            case Space.THOUSAND | Space.NINES:
                return (1000, 1000)
            case Space.UNIT:
                return (1, 1)
        width, height = self._pixels(screen)
        return (width - 1, height - 1)

    def point(self, x: float, y: float, screen: tuple[int, int]) -> Point:
        """A share of the screen. ActionError for what is off it."""
        most = self.most(screen)
        for name, value, limit in zip("xy", (x, y), most, strict=True):
            if not 0 <= value <= limit:
                raise ActionError(
                    f"{name} is {value:g}, which is off the screen: it must be from 0 to {limit:g}."
                )
        match self:
            case Space.UNIT:
                return Point(float(x), float(y))
            case Space.THOUSAND:
                return Point(x / 1000, y / 1000)
            case Space.NINES:
                return Point(min(x / 999, 1.0), min(y / 999, 1.0))
        width, height = self._pixels(screen)
        # The middle of the pixel: it comes back to the same pixel however a driver rounds.
        return Point((x + 0.5) / width, (y + 0.5) / height)

    def corner(self, x: float, y: float, screen: tuple[int, int]) -> Point:
        """A corner of a region: its edges lie between pixels, so the far ones may be the size."""
        if self not in (Space.PIXELS, Space.RESIZED):
            return self.point(x, y, screen)
        width, height = self._pixels(screen)
        for name, value, limit in (("x", x, width), ("y", y, height)):
            if not 0 <= value <= limit:
                raise ActionError(
                    f"The region's {name} is {value:g}; it must be from 0 to {limit}."
                )
        return Point(x / width, y / height)

    def told(self, screen: tuple[int, int]) -> str:
        """The space in words for the model."""
        x, y = self.most(screen)
        return (
            f"Positions are (x, y) with x from 0 (left) to {x:g} (right) and y from 0 (top) to "
            f"{y:g} (bottom)."
        )

    def _pixels(self, screen: tuple[int, int]) -> tuple[int, int]:
        return resized(screen) if self is Space.RESIZED else screen


def resized(size: tuple[int, int], most_area: int = _MOST_AREA) -> tuple[int, int]:
    """The size to which Qwen2.5-VL's image processor brings a picture of `size` (`smart_resize`):
    edges to the nearest multiple of 28, its area within limits."""
    width, height = size
    edges = [round(edge / PATCH) * PATCH for edge in (width, height)]
    if edges[0] * edges[1] > most_area:
        factor = math.sqrt(width * height / most_area)
        edges = [max(PATCH, math.floor(e / factor / PATCH) * PATCH) for e in (width, height)]
    elif edges[0] * edges[1] < _LEAST_AREA:
        factor = math.sqrt(_LEAST_AREA / (width * height))
        edges = [math.ceil(edge * factor / PATCH) * PATCH for edge in (width, height)]
    return (edges[0], edges[1])


def notches(pixels: float, per_notch: int) -> int:
    """The wheel's notches for a scroll in pixels: to the nearest, and at least one."""
    if pixels == 0:
        return 0
    whole = max(1, math.floor(abs(pixels) / per_notch + 0.5))
    return whole if pixels > 0 else -whole
