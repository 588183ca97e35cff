"""A connection to a VNC server: its messages, and ours (RFC 6143, section 7).

The picture is asked for when somebody wants it, so that an idle agent costs nothing. Pseudo
encodings -308 and -223 tell of a new size of the screen; where a server draws the pointer's shape
itself unless -239 is known, it is known and dropped, so that pictures change only when programs
change them.
"""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from PIL import Image

from pagoda_agent.base.errors import ConnectionLostError, DriverError
from pagoda_agent.drivers.vnc.framebuffer import BYTES_PER_PIXEL, Framebuffer
from pagoda_agent.drivers.vnc.handshake import shake_hands


class Encoding(IntEnum):
    """How a rectangle is encoded, the preferred way first."""

    ZLIB = 6
    COPY = 1
    RAW = 0
    EXTENDED_DESKTOP_SIZE = -308
    DESKTOP_SIZE = -223
    CURSOR = -239


# 32 bits per pixel, 24 of them colour, little-endian, 8 bits each of red, green and blue.
_PIXEL_FORMAT = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)

_CONNECT_SECONDS = 10.0
_SEND_SECONDS = 5.0
# A server that has nothing to tell answers in milliseconds; a whole picture takes what the
# network takes, some times as long.
_ANSWER_SECONDS = 1.0
_ECHO_SECONDS = 0.5
_PICTURE_TRIES = 15
_PART = 1 << 20


async def connect(host: str, port: int, password: str) -> "Connection":
    """Raises DriverError, saying what to check."""
    where = f"The VNC server {host}:{port}"
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=_PART)
            try:
                size = await shake_hands(reader, writer, password)
                return Connection(reader, writer, size)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                raise DriverError(
                    f"{where} closed the connection before the login was over."
                ) from None
            except BaseException:
                writer.close()
                raise
    except TimeoutError:
        raise DriverError(f"{where} does not answer.") from None
    except OSError as error:
        raise DriverError(
            f"{where} cannot be reached ({error.strerror or error}). Check host and port, and "
            "whether it listens to other machines."
        ) from error


class Connection:
    """Open from the start. Once `lost` is set, nothing more comes or goes."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        size: tuple[int, int],
    ):
        """Raises DriverError for a screen that is too large."""
        self.lost: ConnectionLostError | None = None
        self._reader, self._writer = reader, writer
        self._picture = Framebuffer()
        self._picture.resize(*size)
        self._news = asyncio.Condition()
        self._answers = 0  # updates that had the corner
        self._updating = False
        self._looking = 0  # calls of `image` that wait for an answer
        codes = b"".join(struct.pack(">i", encoding) for encoding in Encoding)
        writer.write(struct.pack(">Bxxx", 0) + _PIXEL_FORMAT)
        writer.write(struct.pack(">BxH", 2, len(Encoding)) + codes)
        self._ask(whole=True, incremental=False)
        self._task = asyncio.create_task(self._read(), name="vnc")

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self._picture.size

    async def image(self) -> tuple[Image.Image, bool]:
        """The picture (RGB), and whether the server did not say that it is the newest.

        Raises ConnectionLostError, and DriverError where no whole picture comes.
        """
        before = self._answers
        self._looking += 1
        try:
            # What changed, and a pixel whether or not it did: that is the answer that surely
            # comes, together with the changes or after them.
            self._ask(whole=True, incremental=True)
            self._ask(whole=False, incremental=False)
            await self.flush()
            fresh = await self._wait(lambda: self._answers > before, _ANSWER_SECONDS)
        finally:
            self._looking -= 1
        for _ in range(_PICTURE_TRIES):
            if await self._wait(self._is_whole, _ANSWER_SECONDS):
                break
            if not self._updating:
                self._ask(whole=True, incremental=False)
        if self.lost is not None:
            raise self.lost
        if self._picture.missing:
            raise DriverError("The VNC server sends no picture.")
        return self._picture.image(), self._updating or not fresh

    async def echo(self) -> None:
        """Wait until the server has read what was sent before, as far as it answers in time."""
        before = self._answers
        self._ask(whole=False, incremental=False)
        await self.flush()
        await self._wait(lambda: self._answers > before, _ECHO_SECONDS)

    def key(self, keysym: int, pressed: bool) -> None:
        self._writer.write(struct.pack(">BBxxI", 4, pressed, keysym))

    def point(self, x: int, y: int, buttons: int) -> None:
        """The pointer's pixel, and the bits of the buttons that are down."""
        self._writer.write(struct.pack(">BBHH", 5, buttons, x, y))

    async def flush(self) -> None:
        """Wait until what was written is on its way; a failure is in `lost`."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._writer.drain()
        except TimeoutError:
            await self._lose("The VNC server takes no more input")
        except OSError as error:
            await self._lose(f"The connection to the VNC server failed: {error}")

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _is_whole(self) -> bool:
        return not self._updating and not self._picture.missing

    def _ask(self, whole: bool, incremental: bool) -> None:
        width, height = self.size if whole else (1, 1)
        if all(self.size):
            self._writer.write(struct.pack(">BBHHHH", 3, incremental, 0, 0, width, height))

    async def _wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Whether it holds in time, or the connection is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: self.lost or holds())
        return self.lost is not None or holds()

    async def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = ConnectionLostError(f"{why}.")
        self._writer.close()
        async with self._news:
            self._news.notify_all()

    async def _read(self) -> None:
        try:
            while True:
                await self._read_message()
        except (asyncio.IncompleteReadError, OSError):
            await self._lose("The VNC server closed the connection")
        except DriverError as error:
            await self._lose(str(error).rstrip("."))
        finally:
            await self._lose("The connection to the VNC server is closed")

    async def _read_message(self) -> None:
        (kind,) = await self._reader.readexactly(1)
        match kind:
            case 0:
                await self._read_update()
            case 1:  # a colour map
                (colours,) = struct.unpack(">xxxH", await self._reader.readexactly(5))
                await self._skip(6 * colours)
            case 2:  # the bell
                pass
            case 3:  # what was copied there
                (length,) = struct.unpack(">xxxI", await self._reader.readexactly(7))
                await self._skip(length)
            case _:
                raise DriverError(f"The VNC server sent a message of an unknown type, {kind}.")

    async def _read_update(self) -> None:
        self._updating = True
        size, answered = self.size, False
        (count,) = struct.unpack(">xH", await self._reader.readexactly(3))
        for _ in range(count):
            x, y, width, height, encoding = struct.unpack(
                ">HHHHi", await self._reader.readexactly(12)
            )
            await self._read_rectangle((x, y, width, height), encoding)
            answered |= (x, y) == (0, 0) and encoding >= 0
        self._updating = False
        self._answers += answered
        if self.size != size:
            self._ask(whole=True, incremental=False)
        else:
            # Servers may answer in parts, or with the size alone, and wait to be asked for the
            # rest. One pixel is asked for at all times, since only then they tell a new size.
            more = self._picture.missing or (self._looking and not answered)
            self._ask(whole=bool(more), incremental=True)
        async with self._news:
            self._news.notify_all()

    async def _read_rectangle(self, at: tuple[int, int, int, int], encoding: int) -> None:
        x, y, width, height = at
        if encoding >= 0:
            self._picture.check(*at)
        match encoding:
            case Encoding.RAW:
                rows = max(1, _PART // (BYTES_PER_PIXEL * max(width, 1)))
                for top in range(0, height, rows):
                    some = min(rows, height - top)
                    data = await self._reader.readexactly(BYTES_PER_PIXEL * width * some)
                    self._picture.paint(x, y + top, width, some, data)
            case Encoding.COPY:
                left, top = struct.unpack(">HH", await self._reader.readexactly(4))
                self._picture.check(left, top, width, height)
                self._picture.copy((left, top), x, y, width, height)
            case Encoding.ZLIB:
                await self._read_zlib(at)
            case Encoding.DESKTOP_SIZE:
                self._resize(width, height)
            case Encoding.EXTENDED_DESKTOP_SIZE:
                (screens,) = struct.unpack(">Bxxx", await self._reader.readexactly(4))
                await self._skip(16 * screens)
                # y is not 0 where a client was refused another size; the size is what it was.
                if y == 0:
                    self._resize(width, height)
            case Encoding.CURSOR:
                await self._skip((BYTES_PER_PIXEL * width + (width + 7) // 8) * height)
            case _:
                raise DriverError(f"The VNC server sent pixels in an unknown encoding, {encoding}.")

    async def _read_zlib(self, at: tuple[int, int, int, int]) -> None:
        wanted = BYTES_PER_PIXEL * at[2] * at[3]
        (length,) = struct.unpack(">I", await self._reader.readexactly(4))
        # What zlib cannot make smaller, it makes longer by 5 bytes in 16 KiB.
        if length > wanted + wanted // 1000 + 1024:
            raise DriverError(f"The VNC server sent {length:,} bytes for {wanted:,} of pixels.")
        data = await self._reader.readexactly(length)
        self._picture.paint(*at, self._picture.inflate(data, wanted))

    def _resize(self, width: int, height: int) -> None:
        if (width, height) != self.size:
            self._picture.resize(width, height)

    async def _skip(self, length: int) -> None:
        while length > 0:
            length -= len(await self._reader.readexactly(min(length, _PART)))
