"""What all APIs' readers share: a reply is put together piece by piece, as it streams in."""

from abc import ABC, abstractmethod
from typing import Any

from pagoda_agent.models.dialogue import Reply

MAX_REPLY = 256 * 1024
"""Characters of text, thoughts and calls together; a model that goes on is not going to stop."""


class IncompleteError(ValueError):
    """The reply ended before its end, or is not what the API says; asking again may help."""


class Reader(ABC):
    """One reply. `feed` takes the payloads of events, `whole` a reply that came in one piece."""

    def __init__(self) -> None:
        self.done = False
        """Nothing more will come."""
        self.length = 0
        """Characters so far; beyond MAX_REPLY the rest is not read."""

    @abstractmethod
    def feed(self, payload: dict[str, Any]) -> None:
        """Raises IncompleteError for a payload that is not the API's."""

    @abstractmethod
    def whole(self, payload: dict[str, Any]) -> None:
        """The same for a reply that is not streamed; sets `done`."""

    @abstractmethod
    def reply(self) -> Reply:
        """What came, as it is; `complete` says whether that is all."""

    @property
    def complete(self) -> bool:
        """Whether the reply's end came, also where the stream's end mark did not."""
        return self.done


def text_of(value: object) -> str:
    """A string, or a list of parts with text (some servers send those), or nothing for null.

    Raises IncompleteError for anything else.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        if all(isinstance(part, str) for part in parts if part is not None):
            return "".join(part for part in parts if part is not None)
    raise IncompleteError("its text is no string")


def count(values: object, *path: str) -> int:
    """A number of tokens somewhere in a usage object; 0 where it is absent or no number."""
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values if isinstance(values, int) and not isinstance(values, bool) and values > 0 else 0


def mapping(value: object, what: str) -> dict[str, Any]:
    """An object, or nothing for null. Raises IncompleteError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise IncompleteError(f"{what} is no object")
    return value


def items(value: object, what: str) -> list[dict[str, Any]]:
    """A list of objects, or nothing for null. Raises IncompleteError."""
    if value is None:
        return []
    if not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        raise IncompleteError(f"{what} is no list of objects")
    return value
