"""Data URLs (RFC 2397)."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import Modality


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


def url_of(modality: Modality, part: Mapping[str, Any]) -> Any:
    """What a message's part has of its medium: a URL, as a rule, and a data URL of what it holds
    as `{"data": base64, "format": "wav"}`."""
    kind = part["type"]
    value = part.get(kind, part.get(modality.url_part))
    if not isinstance(value, Mapping):
        return value
    data = value.get("data")
    if kind not in modality.inline or not isinstance(data, str):
        return value.get("url")
    return f"data:{modality.kind}/{value.get('format') or 'wav'};base64,{data}"
