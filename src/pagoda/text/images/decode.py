"""Bytes that somebody sent -> pixels, within bounds."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pagoda.base.errors import RequestError
from pagoda.base.units import format_bytes
from pagoda.text.media.base import Values

MAX_BYTES = 32 << 20
MAX_PIXELS = 1 << 26
"""8192 x 8192: 200 MB once it is decoded."""
# Those that pages and phones write. The others of pillow's are rare, and parsers are where the
# holes are.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_WHITE = (255, 255, 255, 255)


def decode_image(data: bytes) -> Values:
    """The picture as a person sees it [1, height, width, 3]: turned as its EXIF says, on white
    where it is transparent, the first frame where it moves.

    Raises RequestError for what is no image, is cut off, or is larger than MAX_BYTES or
    MAX_PIXELS.
    """
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"An image has {format_bytes(len(data))}; at most {format_bytes(MAX_BYTES)} are taken."
        )
    with readable("An image", data, _FORMATS) as image:
        image.load()
        return to_pixels(image)


@contextmanager
def readable(what: str, data: bytes, formats: tuple[str, ...]) -> Iterator[Image.Image]:
    """The open image; what is wrong with it, now or while it is read, becomes a RequestError."""
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            check_size(*image.size)
            yield image
    except UnidentifiedImageError:
        raise RequestError(
            f"What was sent as {what.lower()} is none of {', '.join(formats)}; convert it."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # Where warnings are errors; pillow gives both above a bound that is higher than the one
        # here. Filters would belong to the whole process, and this runs on several threads.
        raise _too_large() from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError) as error:
        # Pillow's decoders raise any of these for damaged files.
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{what} can't be read, it is damaged or cut off: {error}.") from None


def check_size(width: int, height: int) -> None:
    """RequestError for more than MAX_PIXELS, and for none."""
    if width * height > MAX_PIXELS:
        raise _too_large()
    if min(width, height) < 1:
        raise RequestError("An image has no pixels.")


def _too_large() -> RequestError:
    return RequestError(f"An image has more than {MAX_PIXELS:,} pixels; send a smaller one.")


def to_pixels(image: Image.Image) -> Values:
    """Of an image that is loaded, as of `decode_image`."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16") or turned.mode == "I":
        # 16 bits: pillow would clip all that is above 255 to white.
        gray = (np.asarray(turned).astype(np.int64).clip(0, 0xFFFF) >> 8).astype(np.uint8)
        return np.repeat(gray[None, :, :, None], 3, axis=3)
    if turned.has_transparency_data:
        seen = turned.convert("RGBA")
        turned = Image.alpha_composite(Image.new("RGBA", seen.size, _WHITE), seen)
    return np.asarray(turned.convert("RGB"))[None]
