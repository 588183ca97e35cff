"""From a new connection to a VNC server to its first message (RFC 6143, sections 7.1 to 7.3)."""

import asyncio
import re
import struct

from pagoda_agent.base.errors import DriverError, LoginError
from pagoda_agent.drivers.vnc import security

# Longest text (a name, a reason) that is read.
_MAX_TEXT = 1 << 16


async def shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str
) -> tuple[int, int]:
    """Log in; others may use the screen at the same time. Returns its (width, height) in pixels.

    Raises DriverError, LoginError among them, and what asyncio raises when a connection ends.
    """
    minor = await _agree_on_version(reader, writer)
    await _log_in(reader, writer, minor, password)
    writer.write(b"\x01")
    width, height, name_length = struct.unpack(">HH16xI", await reader.readexactly(24))
    await _text(reader, name_length)
    return width, height


async def _agree_on_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    banner = await reader.readexactly(12)
    found = re.fullmatch(rb"RFB (\d{3})\.(\d{3})\n", banner)
    if not found:
        raise DriverError(
            f"This is no VNC server: it began with {banner!r}. Check host and port; VNC displays "
            "are at 5900 and above."
        )
    version = (int(found[1]), int(found[2]))
    # Versions below 3.7 that are not 3.3 mean it, those above 3.8 (Apple's 3.889) understand 3.8.
    minor = 8 if version >= (3, 8) else 7 if version == (3, 7) else 3
    writer.write(b"RFB 003.%03d\n" % minor)
    return minor


async def _log_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, minor: int, password: str
) -> None:
    if minor == 3:
        (kind,) = struct.unpack(">I", await reader.readexactly(4))
        offered = [kind] if kind else []
    else:
        offered = list(await reader.readexactly((await reader.readexactly(1))[0]))
    if not offered:
        raise DriverError(f"The VNC server refused the connection: {await _reason(reader)}.")
    kind = security.choose(offered, bool(password))
    if minor > 3:
        writer.write(bytes([kind]))
    if kind == security.VNC_PASSWORD:
        challenge = await reader.readexactly(security.CHALLENGE_BYTES)
        writer.write(security.answer(challenge, password))
    elif minor < 8:
        return  # without a password, only 3.8 has a result
    (result,) = struct.unpack(">I", await reader.readexactly(4))
    if result:
        reason = await _reason(reader) if minor == 8 else "it did not say why"
        raise LoginError(f"The VNC server refused the login: {reason}. Check the password.")


async def _reason(reader: asyncio.StreamReader) -> str:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return (await _text(reader, length)).decode("utf-8", "replace").rstrip(". \n")


async def _text(reader: asyncio.StreamReader, length: int) -> bytes:
    if length > _MAX_TEXT:
        raise DriverError(f"The VNC server announced a text of {length:,} bytes.")
    return await reader.readexactly(length)
