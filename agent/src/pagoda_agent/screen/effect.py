"""What changed on the screen: an observation for the model, never a verdict.

Changed pixels do not mean success, and a change may come late; so the model is told what was seen
and where, and judges.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from PIL import Image, ImageChops

from pagoda_agent.input.actions import Point
from pagoda_agent.screen.frame import Frame

# A cell has changed when its mean brightness of a colour moves so far (of 255): beyond what JPEG
# does to a still picture (about 4 at quality 60 and more), less than a focus ring or a letter.
_LEVEL = 6
# A change of fewer cells than this share of the screen, away from where the action was, is a
# clock, a cursor or a lamp: 0.1% of 1280x720 is 14 cells, about 900 pixels.
_SMALL = 0.001
# How far from its target an action's own effect is looked for, as a share of the screen.
_NEAR = 0.06


class Box(NamedTuple):
    """A part of the screen, in shares of it."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Effect:
    """`kind` is `small` where only a few pixels away from the action's target changed."""

    kind: Literal["changed", "small", "none", "resized", "unknown"]
    share: float = 0.0
    """Share of the screen's area that changed, from 0 to 1."""
    box: Box | None = None

    @property
    def happened(self) -> bool:
        return self.kind in ("changed", "resized")

    def describe(self) -> str:
        """A sentence for the model."""
        if self.kind == "resized":
            return "The screen's size changed; positions from before no longer hold."
        if self.kind == "unknown":
            return "No new picture came, so whether anything changed is not known."
        if self.kind == "none" or self.box is None:
            return "Nothing on the screen changed yet."
        left, top, right, bottom = (round(100 * value) for value in self.box)
        place = f"x {left}-{right}%, y {top}-{bottom}%"
        if self.kind == "small":
            return f"Only a small spot changed, away from the action, within {place}."
        return f"{max(0.1, 100 * self.share):.1f}% of the screen changed, within {place}."


def compare(before: Frame, after: Frame, targets: tuple[Point, ...] = ()) -> Effect:
    """What is different in `after`; `targets` are where the actions in between were."""
    if before.size != after.size:
        return Effect("resized")
    if after.stale and after.received_at <= before.received_at:
        return Effect("unknown")
    changed = _changed(before, after)
    bounds = changed.getbbox()
    if bounds is None:
        return Effect("none")
    width, height = changed.size
    left, top, right, bottom = bounds
    box = Box(left / width, top / height, right / width, bottom / height)
    share = _share(changed)
    near = any(_distance(box, target) <= _NEAR for target in targets)
    # Without a target (keys, text) any change may be the action's own.
    small = share < _SMALL and bool(targets) and not near
    return Effect("small" if small else "changed", share, box)


def alike(first: Frame, second: Frame) -> bool:
    """Whether both show the same, small spots aside."""
    if first.size != second.size:
        return False
    return _share(_changed(first, second)) < _SMALL


def changed_at(before: Frame, after: Frame, target: Point) -> bool:
    """Whether the screen around one position looks different."""
    if before.size != after.size:
        return True
    changed = _changed(before, after)
    width, height = changed.size
    top, bottom = _span(target.y, height)
    left, right = _span(target.x, width)
    return changed.crop((left, top, right, bottom)).getbbox() is not None


def _span(center: float, cells: int) -> tuple[int, int]:
    return max(0, int((center - _NEAR / 2) * cells)), int((center + _NEAR / 2) * cells) + 1


def _changed(before: Frame, after: Frame) -> Image.Image:
    """A grey pixel for each cell: 255 where it changed, 0 elsewhere."""
    red, green, blue = ImageChops.difference(before.cells, after.cells).split()
    most = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return most.point([255 * (level > _LEVEL) for level in range(256)])


def _share(changed: Image.Image) -> float:
    width, height = changed.size
    return changed.histogram()[255] / (width * height)


def _distance(box: Box, point: Point) -> float:
    x = max(box.left - point.x, 0.0, point.x - box.right)
    y = max(box.top - point.y, 0.0, point.y - box.bottom)
    return max(x, y)
