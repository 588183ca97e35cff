"""Actions, as the journal has them, in words: those of the page in English."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

WORDS: Mapping[str, str] = {
    "Move": "Move",
    "Click": "Click",
    "Drag": "Drag",
    "Press": "Press the button",
    "Release": "Release the button",
    "Scroll": "Scroll",
    "Type": "Type",
    "Key": "Key",
    "Wait": "Wait",
    "Screenshot": "Look again",
    "Zoom": "Look closely",
    "CursorPosition": "Ask where the pointer is",
    "Power": "Power button:",
    "HidReset": "Plug keyboard and mouse out and in",
    "Ask": "Ask:",
    "Done": "Done:",
}
Place = Sequence[float] | None


def describe(action: Mapping[str, Any], size: Sequence[int]) -> str:
    """`Click (320, 180) right ×2`; positions are pixels of a screen of `size`."""
    return " ".join(filter(None, [WORDS[action["action"]], *_details(action, size)]))


def _details(action: Mapping[str, Any], size: Sequence[int]) -> list[str]:
    match action:
        case {"action": "Click", "at": at, "modifiers": held}:
            return [_pixels(at, size), *_clicked(action), "+".join(held)]
        case {"action": "Press" | "Release", "at": at}:
            return [_pixels(at, size), *_clicked(action)]
        case {"action": "Move", "to": at}:
            return [_pixels(at, size)]
        case {"action": "Drag", "path": path}:
            return [" → ".join(_pixels(at, size) for at in path)]
        case {"action": "Scroll", "at": at, "dx": dx, "dy": dy}:
            return [_pixels(at, size), _notches(dy, "↓↑"), _notches(dx, "←→")]
        case {"action": "Zoom", "upper_left": first, "lower_right": last}:
            return [f"{_pixels(first, size)} – {_pixels(last, size)}"]
        case {"action": "Type", "text": text}:
            return [json.dumps(text, ensure_ascii=False)]
        case {"action": "Key", "codes": codes, "repeat": repeat}:
            return ["+".join(codes), _times(repeat)]
        case {"action": "Wait", "seconds": seconds}:
            return [f"{seconds:g} s"]
        case {"what": said} | {"question": said} | {"answer": said}:
            return [str(said)]
    return []


def _pixels(at: Place, size: Sequence[int]) -> str:
    if at is None:
        return ""
    # A share that was a whole pixel may have become a hair less.
    pixels = [
        min(math.floor(share * most + 1e-6), most - 1) for share, most in zip(at, size, strict=True)
    ]
    return f"({', '.join(map(str, pixels))})"


def _clicked(action: Mapping[str, Any]) -> list[str]:
    button = "" if action["button"] == "left" else str(action["button"])
    return [button, _times(action.get("count", 1))]


def _times(count: int) -> str:
    return f"×{count}" if count > 1 else ""


def _notches(count: int, arrows: str) -> str:
    return f"{arrows[count > 0]}{abs(count)}" if count else ""
