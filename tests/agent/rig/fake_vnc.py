"""A VNC server whose every byte the test writes, for what no healthy server sends."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.registry import make_driver

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def fake_vnc(
    talk: Talk, password: str = "", options: str = "layout=us"
) -> AsyncIterator[Driver]:
    """A driver, not open, of a server that holds `talk` on every connection, then closes it."""

    handlers = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await talk(reader, writer)
                await writer.drain()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    driver = make_driver(f"vnc://:{password}@127.0.0.1:{port}?{options}")
    try:
        yield driver
    finally:
        await driver.close()
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers)


def greeting(size: tuple[int, int], name: bytes = b"fake") -> bytes:
    """All that a server of version 3.8 without a password says until its first update."""
    banner, security, result = b"RFB 003.008\n", b"\x01\x01", bytes(4)
    pixel_format = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
    init = struct.pack(">HH", *size) + pixel_format + struct.pack(">I", len(name)) + name
    return banner + security + result + init


def update(*rectangles: bytes) -> bytes:
    return struct.pack(">BxH", 0, len(rectangles)) + b"".join(rectangles)


def rectangle(at: tuple[int, int, int, int], encoding: int, data: bytes = b"") -> bytes:
    return struct.pack(">HHHHi", *at, encoding) + data


def pixels(count: int, colour: tuple[int, int, int]) -> bytes:
    red, green, blue = colour
    return bytes((blue, green, red, 0)) * count


def says(data: bytes, stays: bool = False) -> Talk:
    """A server that says this whatever it hears; `stays` keeps the connection open."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        while stays and await reader.read(1 << 16):
            pass

    return talk
