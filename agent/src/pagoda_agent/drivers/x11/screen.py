"""A connection to an X server: what it shows, and pointer and keys by its XTEST extension.

Everything blocks, and is called from one thread. Errors are those of python-xlib, besides
ActionError and DriverError.
"""

import contextlib
import logging
import socket

from PIL import Image
from Xlib import X, display, error
from Xlib.protocol.event import event_class
from Xlib.xobject.drawable import Window

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.x11.keyboard import Keyboard
from pagoda_agent.input.actions import Button

_LOG = logging.getLogger(__name__)
_BUTTONS: dict[Button, int] = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}
# (dx, dy): button
_WHEEL = {(0, 1): 4, (0, -1): 5, (-1, 0): 6, (1, 0): 7}
# (byte order, mask of red): how Pillow names pixels of four bytes.
_PIXELS = {
    (X.LSBFirst, 0xFF0000): "BGRX", (X.LSBFirst, 0xFF): "RGBX",
    (X.MSBFirst, 0xFF0000): "XRGB", (X.MSBFirst, 0xFF): "XBGR",
}  # fmt: skip
# Bytes of the picture that are asked for at once. python-xlib copies what it has of an answer with
# every 128 KiB that it receives: in one piece, a 4K screen took longer than a second.
_PART = 1 << 20


class _Separate(display._BaseDisplay):  # type: ignore[misc]  # Xlib has no types
    """python-xlib 0.33 keeps what it learns of a server's extensions, which every server numbers
    its own way, for all connections of the process; and it leaves refused ones open."""

    def __init__(self, name: str):
        self.extension_major_opcodes: dict[str, int] = {}
        self.error_classes = error.xerror_class.copy()
        self.event_classes = event_class.copy()
        try:
            super().__init__(name)
        except BaseException:
            if hasattr(self, "socket"):
                self.socket.close()
            raise


display._BaseDisplay = _Separate


class Screen:
    """The first screen of a display."""

    def __init__(self, name: str):
        try:
            self._display = display.Display(name)
            problem = ""
        except error.DisplayNameError:
            raise DriverError(
                f"{name!r} is not an X display; write it like :0 or host:0."
            ) from None
        except (error.DisplayError, error.ConnectionClosedError, OSError) as failure:
            problem = str(failure)
        if problem:  # out here, where the failure does not keep python-xlib's socket alive
            raise DriverError(
                f"The X display {name} cannot be opened ({problem}). Check that its server runs, "
                "and that you may use it: run Pagoda as the user who is logged in there, or set "
                "XAUTHORITY to that user's file."
            )
        try:
            self._use(name)
        except BaseException:
            self._display.close()
            raise

    def _use(self, name: str) -> None:
        self._display.set_error_handler(lambda problem, _: _LOG.warning("X error: %s", problem))
        self._root = self._display.screen().root
        self._pixels = self._pixel_format()
        if not self._display.has_extension("XTEST"):
            raise DriverError(
                f"The X display {name} takes no input from programs: its server lacks the XTEST "
                "extension. Start it without `-extension XTEST`."
            )
        self.keyboard = Keyboard(self._display)
        self._pressed: dict[str, int] = {}  # code: keycode

    def _pixel_format(self) -> str:
        setup, screen = self._display.display.info, self._display.screen()
        bits = {format.depth: format.bits_per_pixel for format in setup.pixmap_formats}
        red = {
            visual.visual_id: visual.red_mask
            for depth in screen.allowed_depths
            for visual in depth.visuals
        }.get(screen.root_visual)
        pixels = _PIXELS.get((setup.image_byte_order, red or 0))
        if screen.root_depth not in (24, 32) or bits.get(screen.root_depth) != 32 or not pixels:
            raise DriverError(
                f"The X display shows pixels of {screen.root_depth} bits, which cannot be read; "
                "start its server with 24."
            )
        return pixels

    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, now."""
        geometry = self._root.get_geometry()
        return geometry.width, geometry.height

    def image(self) -> Image.Image:
        """RGB, without the pointer."""
        try:
            return self._image()
        except error.BadMatch:  # the screen became smaller meanwhile
            return self._image()

    def _image(self) -> Image.Image:
        width, height = self.size()
        image = Image.new("RGB", (width, height))
        rows = max(1, _PART // (4 * width))
        for top in range(0, height, rows):
            size = (width, min(rows, height - top))
            answer = self._root.get_image(0, top, *size, X.ZPixmap, 0xFFFFFFFF)
            part = Image.frombuffer("RGB", size, bytes(answer.data), "raw", self._pixels, 0, 1)
            image.paste(part, (0, top))
        return image

    def pointer(self) -> tuple[int, int]:
        """The pixel that it is on."""
        answer = self._root.query_pointer()
        return answer.root_x, answer.root_y

    def focused_program(self) -> str | None:
        """The class of the window with the keyboard's focus, in small letters."""
        window = self._display.get_input_focus().focus
        try:
            while isinstance(window, Window) and window != self._root:
                if names := window.get_wm_class():
                    return str(names[1]).lower()
                window = window.query_tree().parent
        except error.BadWindow:  # it went away meanwhile
            pass
        return None

    def move(self, x: int, y: int) -> None:
        self._fake(X.MotionNotify, x=x, y=y)

    def button(self, button: Button, pressed: bool) -> None:
        self._fake(X.ButtonPress if pressed else X.ButtonRelease, _BUTTONS[button])

    def wheel(self, dx: int, dy: int) -> None:
        button = _WHEEL[dx, dy]
        self._fake(X.ButtonPress, button)
        self._fake(X.ButtonRelease, button)

    def key(self, code: str, pressed: bool) -> None:
        """A release is of the key that was pressed, whatever the layout says now."""
        if pressed:
            self._pressed[code] = self.keyboard.keycode(code)
            self._fake(X.KeyPress, self._pressed[code])
        elif code in self._pressed:
            self._fake(X.KeyRelease, self._pressed[code])
            del self._pressed[code]

    def close(self) -> None:
        self.keyboard.restore()
        self._display.close()

    def abandon(self) -> None:
        """End a call that hangs in another thread."""
        with contextlib.suppress(OSError):
            self._display.display.socket.shutdown(socket.SHUT_RDWR)

    def _fake(self, event: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
        self._display.xtest_fake_input(event, detail, x=x, y=y)
        self._display.sync()
