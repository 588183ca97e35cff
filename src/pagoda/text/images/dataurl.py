"""Data URLs (RFC 2397) of pictures and videos."""

import base64
import binascii

from pagoda.base.errors import RequestError

_STILLS = "data:video/jpeg;base64"


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def image_bytes(url: str) -> bytes:
    """RequestError for another kind of URL, and for what is no base64."""
    return _decoded(_body(url, "an image", "image/..."), "an image")


def video_bytes(url: str) -> bytes | tuple[bytes, ...]:
    """Of `data:video/jpeg;base64,FRAME,FRAME,...` each frame's, as vLLM takes them."""
    body = _body(url, "a video", "video/...")
    if url.partition(",")[0].lower() == _STILLS:
        return tuple(_decoded(frame, "a video's frame") for frame in body.split(","))
    return _decoded(body, "a video")


def _body(url: str, what: str, kind: str) -> str:
    head, comma, body = url.partition(",")
    if not comma or not is_data_url(url) or not head.lower().endswith(";base64"):
        raise RequestError(f"A data URL of {what} must be data:{kind};base64,... .")
    return body


def _decoded(body: str, what: str) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"The data URL of {what} holds no valid base64.") from None
