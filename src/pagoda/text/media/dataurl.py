"""Data URLs (RFC 2397)."""

import base64
import binascii

from pagoda.base.errors import RequestError


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def split_data_url(url: str, what: str, kind: str) -> tuple[str, str]:
    """What stands in front of the comma, in lower case, and the base64 behind it. RequestError for
    another kind of URL; `what` and `kind` (`an image`, `image`) are its words."""
    head, comma, body = url.partition(",")
    head = head.lower()
    if not comma or not is_data_url(head) or not head.endswith(";base64"):
        raise RequestError(f"A data URL of {what} must be data:{kind}/...;base64,... .")
    return head, body


def base64_bytes(body: str, what: str) -> bytes:
    """RequestError for what is no base64."""
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"The data URL of {what} holds no valid base64.") from None
