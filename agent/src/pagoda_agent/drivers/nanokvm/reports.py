"""Keys and pointer as a NanoKVM takes them on /api/ws: USB reports, or JSON before 2.3.2.

(The Pro since 1.2.6; `web/src/lib` and `server/service/hid` of sipeed/NanoKVM.)
"""

import json
import math
from collections.abc import Collection, Sequence
from typing import Protocol

from pagoda_agent.base.errors import UnsupportedActionError
from pagoda_agent.input.actions import Button, Point
from pagoda_agent.input.keys import KEYS

_BUTTONS: dict[Button, int] = {"left": 1, "right": 2, "middle": 4, "back": 8, "forward": 16}
_ROLLOVER = 6
_KEYBOARD, _MOUSE = 1, 2


class Reports(Protocol):
    """The messages for one change each. `codes` and `buttons` are all that are down after it, `at`
    is the pointer's place, None where nobody knows it."""

    def keys(self, codes: Sequence[str]) -> list[bytes] | list[str]: ...

    def move(self, to: Point, buttons: Collection[Button]) -> list[bytes] | list[str]: ...

    def buttons(self, at: Point | None, buttons: Collection[Button]) -> list[bytes] | list[str]: ...

    def wheel(
        self, at: Point | None, buttons: Collection[Button], up: int
    ) -> list[bytes] | list[str]: ...


def _scaled(share: float) -> int:
    """1 to 0x7fff from edge to edge."""
    return min(max(math.floor(0x7FFF * share) + 1, 1), 0x7FFF)


def _mask(codes: Sequence[str]) -> int:
    return sum(KEYS[code].modifier for code in set(codes))


def _plain(codes: Sequence[str]) -> list[int]:
    return [KEYS[code].usage for code in codes if not KEYS[code].modifier]


class BinaryReports:
    """A keyboard of 8 bytes; an absolute mouse of 6, which says where it is with every report.

    While nobody knows where the pointer is, a relative mouse of 4 bytes clicks in place.
    """

    def __init__(self) -> None:
        self._relative_down = False

    def keys(self, codes: Sequence[str]) -> list[bytes]:
        usages = _plain(codes)
        if len(usages) > _ROLLOVER:
            raise UnsupportedActionError(f"A USB keyboard holds {_ROLLOVER} keys, not more.")
        padded = usages + [0] * (_ROLLOVER - len(usages))
        return [bytes([_KEYBOARD, _mask(codes), 0, *padded])]

    def move(self, to: Point, buttons: Collection[Button]) -> list[bytes]:
        return self._mouse(to, buttons, 0)

    def buttons(self, at: Point | None, buttons: Collection[Button]) -> list[bytes]:
        return self._mouse(at, buttons, 0)

    def wheel(self, at: Point | None, buttons: Collection[Button], up: int) -> list[bytes]:
        return self._mouse(at, buttons, up)

    def _mouse(self, at: Point | None, buttons: Collection[Button], wheel: int) -> list[bytes]:
        down = sum(_BUTTONS[button] for button in buttons)
        if at is None:
            self._relative_down = bool(down)
            return [bytes([_MOUSE, down, 0, 0, wheel & 0xFF])]
        place = b"".join(_scaled(share).to_bytes(2, "little") for share in at)
        reports = [bytes([_MOUSE, down]) + place + bytes([wheel & 0xFF])]
        if self._relative_down:
            # The absolute mouse has taken its buttons over.
            self._relative_down = False
            reports.append(bytes([_MOUSE, 0, 0, 0, 0]))
        return reports


class JsonReports:
    """Arrays of numbers: one key besides modifiers, three buttons, one of them at a time."""

    def __init__(self) -> None:
        self._down: frozenset[Button] = frozenset()

    def keys(self, codes: Sequence[str]) -> list[str]:
        usages = _plain(codes)
        if len(usages) > 1:
            raise UnsupportedActionError(
                "The NanoKVM's firmware is too old to hold two keys besides modifiers; update it."
            )
        mask = _mask(codes)
        # A report without a key drops the modifiers too, so the last of them is its key.
        key = usages[0] if usages else KEYS[codes[-1]].usage if codes else 0
        # Left and right of control, shift, alt and meta.
        pairs = (mask & pair for pair in (0x11, 0x22, 0x44, 0x88))
        return [json.dumps([_KEYBOARD, key, *pairs])]

    def move(self, to: Point, buttons: Collection[Button]) -> list[str]:
        return [json.dumps([_MOUSE, 2, 0, _scaled(to.x), _scaled(to.y)])]

    def buttons(self, at: Point | None, buttons: Collection[Button]) -> list[str]:
        pressed = set(buttons) - self._down
        if not pressed <= {"left", "right", "middle"}:
            raise UnsupportedActionError(
                "The NanoKVM's firmware is too old for the buttons back and forward; update it."
            )
        self._down = frozenset(buttons)
        if not pressed:
            return [json.dumps([_MOUSE, 0, 0, 0, 0])]
        return [json.dumps([_MOUSE, 1, _BUTTONS[button], 0, 0]) for button in pressed]

    def wheel(self, at: Point | None, buttons: Collection[Button], up: int) -> list[str]:
        # As a browser's wheel counts: down is positive.
        return [json.dumps([_MOUSE, 4, 0, 0, -up])]
