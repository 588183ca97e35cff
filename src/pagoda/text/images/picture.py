"""Pictures that somebody sent, or that a script has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from pagoda.base.errors import RequestError
from pagoda.text.images import decode
from pagoda.text.media.base import Data, Loader, Options, Values
from pagoda.text.media.dataurl import base64_bytes, split_data_url


class PictureLoader(Loader):
    """Of [1, height, width, 3]."""

    @property
    def max_bytes(self) -> int:
        return decode.MAX_BYTES

    def data(self, url: str) -> bytes:
        _, body = split_data_url(url, "an image", "image")
        return base64_bytes(body, "an image")

    @contextmanager
    def opened(self, data: Data, options: Options) -> Iterator[Values]:
        assert isinstance(data, bytes)
        yield decode.decode_image(data)

    def given(self, value: Any, options: Options) -> Values:
        return pixels_of(value)


def is_picture(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, np.ndarray) and value.ndim == 3)


def pixels_of(image: Any) -> Values:
    """[1, height, width, 3] of a PIL image or an array [height, width, 3]; RequestError for
    others."""
    if isinstance(image, Image.Image):
        decode.check_size(*image.size)
        image.load()
        return decode.to_pixels(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,):
        decode.check_size(*image.shape[:2])
        return image[None]
    raise RequestError(
        "An image is a PIL image, a uint8 array of [height, width, 3] or a data URL, not "
        f"{type(image).__name__}.",
        "prompts",
    )
