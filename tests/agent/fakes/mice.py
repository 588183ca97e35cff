"""A computer with the three USB devices of a NanoKVM, as a screen feels them."""

from tests.agent.fakes.screens import Screen
from tests.agent.fakes.usb import KERNEL_CODES

_BITS = (1, 2, 4, 8, 16)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


class Computer:
    """Takes reports, and does to the screen what changed since the last of that device."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._usages: set[int] = set()
        self._buttons = {"relative": 0, "absolute": 0}

    @property
    def held(self) -> tuple[set[int], int]:
        """Usages of keys, and bits of buttons."""
        return self._usages, self._buttons["relative"] | self._buttons["absolute"]

    def keyboard(self, report: bytes) -> None:
        modifiers, _, *keys = report
        assert len(keys) == 6
        down = {0xE0 + bit for bit in range(8) if modifiers >> bit & 1} | set(keys) - {0}
        before, self._usages = self._usages, down
        # Modifiers come first in a report.
        for usage in sorted(before - down):
            self._screen.key(KERNEL_CODES[usage], False)
        for usage in sorted(down - before, reverse=True):
            self._screen.key(KERNEL_CODES[usage], True)

    def relative_mouse(self, report: bytes) -> None:
        buttons, dx, dy, wheel = report
        assert not dx and not dy, "no driver moves so"
        self._press("relative", buttons)
        self._turn(wheel)

    def absolute_mouse(self, report: bytes) -> None:
        buttons, x_low, x_high, y_low, y_high, wheel = report
        x, y = x_low | x_high << 8, y_low | y_high << 8
        assert 0 <= x <= 0x7FFF and 0 <= y <= 0x7FFF, "out of the descriptor's range"
        self._screen.move(x / 0x7FFF, y / 0x7FFF)
        self._press("absolute", buttons)
        self._turn(wheel)

    def _press(self, mouse: str, buttons: int) -> None:
        before = self.held[1]
        self._buttons[mouse] = buttons
        after = self.held[1]
        for bit in _BITS:
            if (before ^ after) & bit:
                self._screen.button(bit, bool(after & bit))

    def _turn(self, wheel: int) -> None:
        if wheel:
            self._screen.wheel(0, _signed(wheel))
