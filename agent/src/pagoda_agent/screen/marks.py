"""What was done, marked on a picture of the screen as the page marks it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

_HALO, _INK = "#ffffff", "#d4281c"
Spot = tuple[float, float]
Line = list[Spot]


def mark(image: Image.Image, actions: Sequence[Mapping[str, Any]]) -> None:
    """Draw actions, as the journal has them, on their picture."""
    width, height = image.size
    unit = max(width, height) / 100
    draw = ImageDraw.Draw(image)
    lines = [line for action in actions for line in _lines(action, image.size, unit)]
    for color, broad in ((_HALO, 0.9), (_INK, 0.45)):
        for line in lines:
            draw.line(line, fill=color, width=max(1, round(broad * unit)), joint="curve")


def _lines(action: Mapping[str, Any], size: tuple[int, int], unit: float) -> list[Line]:
    def spot(share: Sequence[float]) -> Spot:
        return share[0] * size[0], share[1] * size[1]

    match action:
        case {"action": "Click", "at": [_, _] as at, "count": count}:
            rings = [_ring(spot(at), 2.2 * unit)] + [_ring(spot(at), 3.2 * unit)] * (count > 1)
            return [*rings, *_cross(spot(at), unit)]
        case {"action": "Press" | "Release", "at": [_, _] as at}:
            return [_ring(spot(at), 1.5 * unit), *_cross(spot(at), 2.5 * unit)]
        case {"action": "Move", "to": [_, _] as to}:
            return _cross(spot(to), 2 * unit)
        case {"action": "Scroll", "at": [_, _] as at, "dx": dx, "dy": dy}:
            # Positive: what is further right, or further up.
            x, y = spot(at)
            to = (x + 5 * unit * _sign(dx), y - 5 * unit * _sign(dy))
            return [_ring((x, y), unit), *_arrow([(x, y), to], 2 * unit)]
        case {"action": "Drag", "path": [_, *_] as path}:
            spots = [spot(share) for share in path]
            return [_ring(spots[0], unit), *(_arrow(spots, 2 * unit) if spots[1:] else [])]
        case {"action": "Zoom", "upper_left": upper_left, "lower_right": lower_right}:
            (left, top), (right, bottom) = spot(upper_left), spot(lower_right)
            return [[(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]]
    return []


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _ring(middle: Spot, radius: float) -> Line:
    turns = (2 * math.pi * part / 48 for part in range(49))
    return [
        (middle[0] + radius * math.cos(turn), middle[1] + radius * math.sin(turn)) for turn in turns
    ]


def _cross(middle: Spot, half: float) -> list[Line]:
    x, y = middle
    return [[(x - half, y), (x + half, y)], [(x, y - half), (x, y + half)]]


def _arrow(path: Line, head: float) -> list[Line]:
    (from_x, from_y), (x, y) = path[-2:]
    angle = math.atan2(y - from_y, x - from_x)
    ends = [
        (x - head * math.cos(angle + turn), y - head * math.sin(angle + turn))
        for turn in (0.5, -0.5)
    ]
    return [path, [ends[0], (x, y), ends[1]]]
