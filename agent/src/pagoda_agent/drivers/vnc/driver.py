"""A computer whose screen a VNC server shares."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unicodedata import normalize

from PIL import Image

from pagoda_agent.base.errors import (
    ConfigError,
    ConnectionLostError,
    DriverError,
    NoSignalError,
    UnsupportedActionError,
    UntypeableError,
)
from pagoda_agent.drivers.address import Address, layout_of, parse_address, place
from pagoda_agent.drivers.base import Capabilities, Driver
from pagoda_agent.drivers.vnc.connection import Connection, connect
from pagoda_agent.input.actions import Button, Point
from pagoda_agent.input.keys import KEYS, SHIFTED, keysym_of
from pagoda_agent.input.layouts import LAYOUTS
from pagoda_agent.screen.frame import Frame, pixel

_PORT = 5900
# Ports below this are numbers of displays, as VNC viewers read them: host:1 is port 5901.
_MOST_DISPLAYS = 100
# Bits of a pointer message. The protocol has eight and says nothing of the last one, which servers
# drop (TigerVNC 1.12, x11vnc 0.9.16); there is none for forward.
_BUTTONS: dict[Button, int] = {"left": 1, "middle": 2, "right": 4}
# (dx, dy): bit
_WHEEL = {(0, 1): 8, (0, -1): 16, (-1, 0): 32, (1, 0): 64}
# Characters that are typed in one go. After them, and after every press and release of a button,
# the server's answer is awaited: x11vnc loses what piles up while it looks at the screen.
_PARTS = re.compile(".{1,5}", re.DOTALL)
# Seconds before each try to connect again.
_TRIES = (0.0, 0.5, 1.5)
_SHIFT = KEYS["ShiftLeft"].keysym
_WITH_SHIFT = frozenset(SHIFTED.values())
# X.Org's layouts have the keysym of before Unicode on their keys.
_EURO = 0x20AC


class VncDriver(Driver):
    """Types ASCII, and what has a key of its own on the layout that the URL names; with
    `?unicode=1` anything, for servers of Windows and macOS, which have characters and not keys.

    X servers lend a free key to any other sign, and drop it without a word once none is left:
    TigerVNC 1.12 begins with 19 and never takes one back, x11vnc 0.9.16 with 18. Other clients may
    have used them up, and no client is told.
    """

    name = "vnc"
    capabilities = Capabilities(horizontal_wheel=True, delay=0.05)
    click_pause = 0.01

    def __init__(self, address: Address):
        super().__init__()
        self._address = address
        self._layout = layout_of(address)
        if address.options.get("unicode", "0") not in ("0", "1"):
            raise ConfigError("The option unicode of a VNC driver's URL is 1 or 0.")
        if address.options.get("unicode") == "1":
            self.capabilities = replace(self.capabilities, unicode=True)
        self._connection: Connection | None = None
        self._reconnecting = asyncio.Lock()
        # The connection was lost and made again in the middle of something, which must not go on.
        self._interrupted = False
        self._typing = False
        self._at: tuple[int, int] | None = None
        self._buttons = 0
        self._keysyms: dict[str, int] = {}  # code: what was sent for it
        self._frames = 0

    @property
    def target(self) -> str:
        return f"the VNC server {place(self._address.host, self._address.port)}"

    async def open(self) -> None:
        self._connection = await self._connect()

    async def release_all(self) -> None:
        await super().release_all()
        self._interrupted = False  # nobody is in the middle of anything any more

    async def close(self) -> None:
        await self.release_all()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def screenshot(self) -> Frame:
        connection = await self._living()
        try:
            image, stale = await self._image(connection)
        except ConnectionLostError:
            image, stale = await self._image(await self._living())
        self._frames += 1
        return Frame(image, self._frames, stale=stale)

    async def screen_size(self) -> tuple[int, int]:
        return (await self._living()).size

    async def type_text(self, text: str) -> None:
        text = normalize("NFC", text.replace("\r\n", "\n"))
        bad = [char for char in text if not self._has_key(char)]
        if bad:
            raise UntypeableError(bad, f"{self.name} (layout {self._layout}, without ?unicode=1)")
        self._typing = True
        try:
            for part in _PARTS.findall(text):
                await self._send(partial(_type, text=part), echo=True)
        finally:
            self._typing = False

    def _has_key(self, char: str) -> bool:
        if char.isascii() or self.capabilities.unicode:
            return bool(keysym_of(char)) and not 0xD800 <= ord(char) < 0xE000
        return len(LAYOUTS[self._layout].get(char, ())) == 1  # two: a dead key and a letter

    async def _send_move(self, to: Point) -> None:
        self._at = pixel(to, await self.screen_size())
        await self._send_pointer(self._buttons)

    async def _send_button(self, button: Button, pressed: bool) -> None:
        bit = _BUTTONS.get(button, 0)
        if pressed and not bit:
            raise UnsupportedActionError(
                f"VNC has no {button!r} button; use keys, as AltLeft with an arrow."
            )
        if self._at is None and not pressed:
            return  # nothing was ever pressed
        buttons = self._buttons | bit if pressed else self._buttons & ~bit
        await self._send_pointer(buttons, echo=True)

    async def _send_wheel(self, dx: int, dy: int) -> None:
        await self._send_pointer(self._buttons | _WHEEL[dx, dy], self._buttons, echo=True)

    async def _send_key(self, code: str, pressed: bool) -> None:
        if pressed:
            # Servers lift Shift for signs that need none, so what is sent is what Shift makes.
            with_shift = "ShiftLeft" in self._keysyms or "ShiftRight" in self._keysyms
            keysym = SHIFTED.get(code) if with_shift else None
            self._keysyms[code] = keysym or KEYS[code].keysym
        keysym = self._keysyms[code] if pressed else self._keysyms.pop(code, 0)
        if keysym:
            await self._send(lambda connection: connection.key(keysym, pressed))

    async def _send_pointer(self, *states: int, echo: bool = False) -> None:
        at = self._at
        if at is None:
            raise UnsupportedActionError(
                "Nobody knows where the pointer is; name the position of this action too."
            )

        def write(connection: Connection) -> None:
            for self._buttons in states:
                connection.point(*at, self._buttons)

        await self._send(write, echo)

    async def _send(self, write: Callable[[Connection], None], echo: bool = False) -> None:
        """With `echo`, the server has read it afterwards, if it answers at all.

        Raises ConnectionLostError once everything is released on a new connection."""
        connection = self._opened()
        if connection.lost is None and not self._interrupted:
            write(connection)
            await (connection.echo() if echo else connection.flush())
        if lost := connection.lost:
            await self._living()
        if lost or self._interrupted:
            self._interrupted = False
            raise ConnectionLostError(
                "The connection to the VNC server was lost in the middle of the action, part of "
                "which may be done. It is made again, and all keys and buttons are released."
            )

    async def _image(self, connection: Connection) -> tuple[Image.Image, bool]:
        if not all(connection.size):
            await connection.close()  # the next try asks for the size again
            raise NoSignalError("The VNC server's screen has no size; is the computer on?")
        return await connection.image()

    def _opened(self) -> Connection:
        if self._connection is None:
            raise DriverError("The VNC driver is not open.")
        return self._connection

    async def _living(self) -> Connection:
        """The connection, made again where it was lost, with everything released."""
        async with self._reconnecting:
            old = self._opened()
            if old.lost is None:
                return old
            await old.close()
            try:
                connection = await self._connect(_TRIES)
            except DriverError as error:
                raise ConnectionLostError(f"{old.lost} {error}") from error
            self._connection = connection
            self._interrupted |= self._typing or bool(self.held)
            for keysym in self._keysyms.values():
                connection.key(keysym, False)
            if self._at is not None:
                connection.point(*self._at, 0)
            self._buttons = 0
            self._keysyms.clear()
            self._held_buttons.clear()
            self._held_keys.clear()
            return connection

    async def _connect(self, tries: tuple[float, ...] = (0.0,)) -> Connection:
        address = self._address
        for number, pause in enumerate(tries, start=1):
            await asyncio.sleep(pause)
            try:
                return await connect(address.host, address.port or _PORT, address.password)
            except DriverError:
                if number == len(tries):
                    raise
        raise AssertionError("there is always a try")


def _type(connection: Connection, text: str) -> None:
    for char in text:
        keysym = _EURO if char == "€" else keysym_of(char)
        # Servers that know no layout take the key's place from it, and Shift from us.
        keys = (_SHIFT, keysym) if keysym in _WITH_SHIFT else (keysym,)
        for key in keys:
            connection.key(key, True)
        for key in reversed(keys):
            connection.key(key, False)


def make(url: str) -> VncDriver:
    """`vnc://host`, `vnc://host:1` (a display, port 5901) or `vnc://:password@host:5900`; with
    `?layout=de`, its keyboard types more than ASCII, with `?unicode=1` all."""
    address = parse_address(url, ("layout", "unicode"))
    port = _PORT if address.port is None else address.port
    return VncDriver(replace(address, port=port + _PORT if port < _MOST_DISPLAYS else port))
