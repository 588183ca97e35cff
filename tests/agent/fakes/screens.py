"""The computer at the other end of a fake KVM: an X display, or a picture that hears nothing."""

import io
import threading
from typing import Protocol

from PIL import Image, ImageDraw

from tests.agent.fakes.usb import X_OFFSET

# X's numbers of the buttons, by their bit in a USB mouse's report.
_X_BUTTONS = {1: 1, 2: 3, 4: 2, 8: 8, 16: 9}


class Screen(Protocol):
    def picture(self) -> Image.Image:
        """Called from a thread of its own."""

    def key(self, kernel_code: int, pressed: bool) -> None: ...

    def button(self, bit: int, pressed: bool) -> None: ...

    def move(self, x: float, y: float) -> None:
        """Shares of the screen, 1 being the last pixel."""

    def wheel(self, dx: int, dy: int) -> None:
        """Notches to the right and up."""


class Still:
    """A picture; `events` is what would have happened to the computer."""

    def __init__(self, size: tuple[int, int] = (320, 200)):
        self.image = Image.new("RGB", size, "#204060")
        self.events: list[tuple] = []

    def draw(self, colour: str) -> None:
        ImageDraw.Draw(self.image).rectangle((40, 40, 120, 120), fill=colour)

    def picture(self) -> Image.Image:
        return self.image.copy()

    def key(self, kernel_code: int, pressed: bool) -> None:
        self.events.append(("key", kernel_code, pressed))

    def button(self, bit: int, pressed: bool) -> None:
        self.events.append(("button", bit, pressed))

    def move(self, x: float, y: float) -> None:
        self.events.append(("move", x, y))

    def wheel(self, dx: int, dy: int) -> None:
        self.events.append(("wheel", dx, dy))


class XScreen:
    """An X display, played upon with XTEST."""

    def __init__(self, name: str):
        from Xlib.display import Display

        self._display = Display(name)
        self._eyes = Display(name)
        self._looking = threading.Lock()
        size = self._display.screen()
        self._size = (size.width_in_pixels, size.height_in_pixels)

    def close(self) -> None:
        self._display.close()
        with self._looking:
            self._eyes.close()

    def picture(self) -> Image.Image:
        from Xlib import X

        with self._looking:
            root = self._eyes.screen().root
            data = root.get_image(0, 0, *self._size, X.ZPixmap, 0xFFFFFFFF).data
        return Image.frombytes("RGB", self._size, data, "raw", "BGRX")

    def key(self, kernel_code: int, pressed: bool) -> None:
        from Xlib import X

        self._fake(X.KeyPress if pressed else X.KeyRelease, kernel_code + X_OFFSET)

    def button(self, bit: int, pressed: bool) -> None:
        from Xlib import X

        self._fake(X.ButtonPress if pressed else X.ButtonRelease, _X_BUTTONS[bit])

    def move(self, x: float, y: float) -> None:
        from Xlib import X

        width, height = self._size
        self._fake(X.MotionNotify, 0, round(x * (width - 1)), round(y * (height - 1)))

    def wheel(self, dx: int, dy: int) -> None:
        from Xlib import X

        for number in [4] * dy + [5] * -dy + [7] * dx + [6] * -dx:
            self._fake(X.ButtonPress, number)
            self._fake(X.ButtonRelease, number)

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> None:
        from Xlib.ext import xtest

        xtest.fake_input(self._display, kind, detail, x=x, y=y)
        self._display.sync()


def as_jpeg(image: Image.Image, quality: int = 80) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
