"""Pictures on their way into a chat: typed behind /image, or dropped onto the terminal as paths."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

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
# As terminals paste a file that is dropped: in quotes, with backslashes, or as a URL. A quote
# inside of single ones is '\''.
_WORD = re.compile(
    r"""(?<!\S)
    (?: '(?:[^']|'\\'')*' | "(?:[^"\\]|\\.)*" | (?:\\.|[^\s'"\\])(?:\\.|[^\s\\])* )
    (?!\S)""",
    re.VERBOSE,
)
_ROOTED = ("/", "~/", "file://")
BEGINNINGS = (*_ROOTED, "'", '"')
"""Of a message that begins with a dropped file."""


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
    """The paths that a text consists of: one as it stands, or words in any of a shell's forms."""
    whole = Path(text).expanduser()
    if _exists(whole):
        return [whole]
    return [path_of(word) for word in _WORD.findall(text)]


def path_of(word: str) -> Path:
    """A word's path, without the quotes, backslashes or URL's form it may have."""
    if word.startswith("'"):
        plain = word[1:-1].replace("'\\''", "'")
    elif word.startswith('"'):
        plain = re.sub(r'\\(["\\$`])', r"\1", word[1:-1])
    elif word.startswith("file://"):
        return Path(unquote(urlsplit(word).path))
    else:
        plain = re.sub(r"\\(.)", r"\1", word)
    if plain.startswith("file://"):
        return path_of(plain)
    return Path(plain).expanduser()


def dropped_pictures(text: str) -> tuple[list[Path], str]:
    """Paths of pictures in a message, from the root or the home folder on, and its text without
    them. Other files' paths stay in the text."""
    whole = Path(text).expanduser()
    if text.startswith(_ROOTED) and _is_picture(whole):
        return [whole], ""
    found: list[Path] = []

    def take(match: re.Match[str]) -> str:
        word = match[0]
        if not word.lstrip("'\"").startswith(_ROOTED):
            return word
        path = path_of(word)
        if not _is_picture(path):
            return word
        found.append(path)
        return ""

    rest = _WORD.sub(take, text)
    return found, rest.strip() if found else text


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
