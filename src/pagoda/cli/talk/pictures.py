"""Pictures on their way into a chat: typed behind /image, or dropped onto the terminal as paths."""

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.cli.talk.source import Source

# What servers take, Pagoda's among them, by how such a file begins.
_BEGINNINGS: dict[str, Callable[[bytes], bool]] = {
    "image/png": lambda data: data.startswith(b"\x89PNG"),
    "image/jpeg": lambda data: data.startswith(b"\xff\xd8\xff"),
    "image/gif": lambda data: data.startswith(b"GIF8"),
    "image/webp": lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP",
    "image/bmp": lambda data: data.startswith(b"BM"),
}
_BEGINNING = 12
_MAX_BYTES = 32 << 20
# A word as a shell reads it, which is how terminals paste a file that is dropped onto them.
_PIECES = r"""'([^']*)' | "((?:[^"\\]|\\.)*)" | \\(.) | ([^\s'"\\]+)"""
_WORD = re.compile(rf"(?<!\S) (?:{_PIECES})++ (?!\S)", re.VERBOSE)
_PIECE = re.compile(_PIECES, re.VERBOSE)
_ROOTED = ("/", "~/", "file://")
BEGINNINGS = (*_ROOTED, "'", '"')
"""How a message begins that begins with a dropped file."""


@dataclass(frozen=True)
class Picture:
    name: str
    size: int
    """Bytes of the file."""
    url: str
    """With the data in it."""

    @property
    def part(self) -> dict[str, Any]:
        """As a message holds it."""
        return {"type": "image_url", "image_url": {"url": self.url}}

    def __str__(self) -> str:
        return f"{self.name} ({format_bytes(self.size)})"


def read_picture(path: Path) -> Picture:
    """Raises ConfigError for what is no picture, or one that is too large to send."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # a pipe would keep the chat waiting
            raise ConfigError(f"{path} is no file.")
        data = path.read_bytes() if size <= _MAX_BYTES else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror or error}.") from error
    if size > _MAX_BYTES:
        most = format_bytes(_MAX_BYTES)
        raise ConfigError(f"{path} has {format_bytes(size)}; at most {most} are sent. Shrink it.")
    kind = _kind(data)
    if kind is None:
        raise ConfigError(
            f"{path} is no picture that can be sent; these can: PNG, JPEG, GIF, WebP and BMP."
        )
    return Picture(path.name, size, f"data:{kind};base64,{base64.b64encode(data).decode()}")


def check_sight(source: Source) -> None:
    """Raises ConfigError where the model reads text alone."""
    if source.sees is False:
        raise ConfigError(
            f"{source.model} reads text alone, so the picture was not taken. Models that see are "
            "in docs/models.md."
        )


def paths_of(text: str) -> list[Path]:
    """The paths that a text consists of: one as it stands, or a shell's words."""
    whole = Path(os.path.expanduser(text))
    if _exists(whole) or _WORD.sub("", text).strip():
        return [whole]
    return [_path_of(match[0]) for match in _WORD.finditer(text)]


def dropped_pictures(text: str) -> tuple[list[Path], str]:
    """Paths of pictures in a message, from the root or the home folder on, and its text without
    them. Other files' paths stay in the text."""
    whole = Path(os.path.expanduser(text))
    if text.startswith(_ROOTED) and _is_picture(whole):
        return [whole], ""
    found: list[Path] = []

    def take(match: re.Match[str]) -> str:
        word = match[0]
        if not word.lstrip("'\"").startswith(_ROOTED) or not _is_picture(path := _path_of(word)):
            return word
        found.append(path)
        return ""

    rest = _WORD.sub(take, text)
    return found, rest.strip() if found else text


def _path_of(word: str) -> Path:
    """A word's path, without quotes and backslashes, and without the form of a URL."""
    plain = ""
    for quoted, doubly, escaped, bare in _PIECE.findall(word):
        plain += quoted + re.sub(r'\\(["\\$`])', r"\1", doubly) + escaped + bare
    if plain.startswith("file://"):
        _host, slash, path = plain.removeprefix("file://").partition("/")
        return Path(unquote(slash + path))
    return Path(os.path.expanduser(plain))


def _kind(data: bytes) -> str | None:
    return next((kind for kind, begins in _BEGINNINGS.items() if begins(data)), None)


def _is_picture(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _kind(file.read(_BEGINNING)) is not None
    except (OSError, ValueError):  # among them a name too long, or with a null
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
