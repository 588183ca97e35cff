"""A computer without a display: it draws what was done to it, and writes it down."""

import asyncio

from PIL import Image, ImageDraw

from pagoda_agent.drivers.base import Capabilities, Driver
from pagoda_agent.screen.frame import Frame


class FakeComputer(Driver):
    """Clicks leave marks and text fills lines, unless it is `deaf`."""

    name = "fake"
    capabilities = Capabilities(
        horizontal_wheel=True, unicode=True, captures=True, power=True, hid_reset=True
    )

    def __init__(self, size=(640, 360)):
        super().__init__()
        self.image = Image.new("RGB", size, (200, 200, 200))
        self.log = []
        self.typed = ""
        self.deaf = False
        self.typing_pause = 0.0
        self.fails = {}
        """Errors to raise, by the kind of the event."""
        self.taken_over_at = 0
        """The user moves the mouse before this look at who has it, counted from 1."""
        self.program = None
        """What has the focus."""
        self._frames = 0
        self._at = (0, 0)

    async def open(self):
        pass

    async def close(self):
        await self.release_all()

    async def screen_size(self):
        return self.image.size

    async def taken_over(self):
        self.taken_over_at -= 1
        return self.taken_over_at == 0

    async def focused_program(self):
        return self.program

    async def screenshot(self):
        self._raise("screenshot")
        self._frames += 1
        return Frame(self.image.copy(), self._frames)

    def resize(self, size):
        self.image = Image.new("RGB", size, (200, 200, 200))

    def paint(self, box, color=(60, 30, 30)):
        ImageDraw.Draw(self.image).rectangle(box, color)

    def done(self, *kinds):
        """What was done, of some kinds only."""
        return [entry for entry in self.log if entry[0] in kinds]

    async def _send_move(self, to):
        self._note("move", round(to.x * self.image.width), round(to.y * self.image.height))
        self._at = self.log[-1][1:]

    async def _send_button(self, button, pressed):
        self._note("press" if pressed else "release", button)
        if pressed and not self.deaf:
            x, y = self._at
            # Another colour each time: the same click has an effect again.
            shade = 40 * (len(self.log) % 5)
            self.paint((x - 8, y - 8, x + 8, y + 8), (shade, 0, 120))

    async def _send_wheel(self, dx, dy):
        self._note("wheel", dx, dy)

    async def _send_key(self, code, pressed):
        self._note("down" if pressed else "up", code)
        if pressed and code == "Backspace" and not self.deaf:
            self.typed = self.typed[:-1]
            self.paint((200, 0, 330, 300), (0, 0, 40 + len(self.typed) % 40))

    async def power(self, action):
        self._note("power", action.what)

    async def hid_reset(self):
        self._note("replug")

    async def type_text(self, text):
        for char in text:
            self._note("type", char)
            self.typed += char
            await asyncio.sleep(self.typing_pause)
        if not self.deaf:
            top = 12 * (len(self.typed) % 20)
            self.paint((200, top, 330, top + 8), (0, 80, 0))

    def _note(self, *entry):
        self.log.append(entry)
        self._raise(entry[0])

    def _raise(self, kind):
        error = self.fails.pop(kind, None)
        if error is not None:
            raise AssertionError(error) if isinstance(error, str) else error
