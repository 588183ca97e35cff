"""JPEGs from a KVM, which may be cut, or no JPEGs at all."""

import asyncio
import io

from PIL import Image

from pagoda_agent.base.errors import DriverError

MAX_BYTES = 32 << 20
"""Most bytes of one encoded picture; 4K at the best quality stays below 8 MB."""
_MAX_EDGE = 8192


async def decode(data: bytes, where: str) -> Image.Image:
    """The picture as RGB; its size is what the JPEG says, whatever the KVM said elsewhere.

    Raises DriverError for bytes that are no whole JPEG.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        raise DriverError(f"{where} sent {_described(data)} instead of a JPEG picture.")
    return await asyncio.to_thread(_decode, data, where)


def _decode(data: bytes, where: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=["JPEG"])
        if min(image.size) < 1 or max(image.size) > _MAX_EDGE:
            raise ValueError(f"its size is {image.size[0]}x{image.size[1]} pixels")
        return image.convert("RGB")
    # Pillow warns of huge pictures, or refuses them.
    except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as error:
        raise DriverError(f"{where} sent a broken JPEG picture: {error}.") from error


def _described(data: bytes) -> str:
    start = data[:200].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page"
    return f"{len(data)} bytes of something else" if data else "nothing"
