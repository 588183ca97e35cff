"""The picture that a VNC server's rectangles add up to."""

import zlib

from PIL import Image

from pagoda_agent.base.errors import DriverError

BYTES_PER_PIXEL = 4
MAX_PIXELS = 1 << 26
"""256 MiB of them: twice an 8K screen."""


class Framebuffer:
    """Takes pixels of four bytes: blue, green, red, nothing.

    Raises DriverError for what is hostile.
    """

    def __init__(self) -> None:
        self.size = (0, 0)
        """(width, height) in pixels."""
        self.missing = 0
        """Pixels that have not come since the size changed."""
        self._image = Image.new("RGB", self.size)
        self._inflater = zlib.decompressobj()

    def resize(self, width: int, height: int) -> None:
        if width * height > MAX_PIXELS:
            raise DriverError(
                f"The VNC server's screen has {width} x {height} pixels; "
                f"at most {MAX_PIXELS:,} are supported."
            )
        self.size = (width, height)
        self.missing = width * height
        self._image = Image.new("RGB", self.size)

    def check(self, x: int, y: int, width: int, height: int) -> None:
        if x + width > self.size[0] or y + height > self.size[1]:
            raise DriverError(
                f"The VNC server sent a rectangle of {width} x {height} pixels at ({x}, {y}), "
                f"which is not on its screen of {self.size[0]} x {self.size[1]}."
            )

    def paint(self, x: int, y: int, width: int, height: int, data: bytes) -> None:
        """A rectangle that was checked; `data` are all of its bytes, rows from above."""
        if data:
            block = Image.frombuffer("RGB", (width, height), data, "raw", "BGRX", 0, 1)
            self._image.paste(block, (x, y))
        self.missing = max(0, self.missing - width * height)

    def copy(self, source: tuple[int, int], x: int, y: int, width: int, height: int) -> None:
        """A rectangle from elsewhere on the screen; both were checked, and may overlap."""
        left, top = source
        self._image.paste(self._image.crop((left, top, left + width, top + height)), (x, y))

    def inflate(self, data: bytes, wanted: int) -> bytes:
        """The next `wanted` bytes of the connection's zlib stream, of which `data` is a part."""
        try:
            pixels = self._inflater.decompress(data, wanted)
            # What is left may be the mark that ends a part, but no more pixels.
            more = self._inflater.unconsumed_tail
            excess = self._inflater.decompress(more, 1) if more else b""
        except zlib.error as error:
            raise DriverError(f"The VNC server sent broken zlib data: {error}.") from error
        if len(pixels) != wanted or excess:
            raise DriverError("The VNC server sent more or fewer pixels than it announced.")
        return pixels

    def image(self) -> Image.Image:
        """RGB; a copy."""
        return self._image.copy()
