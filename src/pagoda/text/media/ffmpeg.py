"""FFmpeg's libraries, by PyAV, which is an extra: files that somebody sent, within bounds."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pagoda.base.errors import RequestError

# FFmpeg reads hundreds of formats, some of which are lists of other files: those that cameras,
# phones, recorders and pages write.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg,flv"
_SOUNDS = "wav,mp3,flac,aac,aiff,amr,caf,w64"


def library(what: str, extra: str, instead: str) -> ModuleType:
    """PyAV; RequestError where it is not installed, with its extra and what works without."""
    try:
        import av
    except ImportError:
        raise RequestError(
            f"This server reads no {what} files, since PyAV is not installed: pip install "
            f"'pagoda-llm[{extra}]'. {instead}"
        ) from None
    module: ModuleType = av
    return module


@contextmanager
def damage_named(av: ModuleType, what: str) -> Iterator[ModuleType]:
    """Faults of FFmpeg, now or while a file is read, as RequestErrors about `what`."""
    try:
        yield av
    except RequestError:
        raise
    except (av.FFmpegError, OSError, ValueError, EOFError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise RequestError(
            f"{what} can't be read, it is damaged, cut off or of an unknown kind: {words}."
        ) from None


def open_container(av: ModuleType, data: bytes, *, sounds: bool = False) -> Any:
    """A file's streams; with `sounds` files without pictures too."""
    formats = f"{_CONTAINERS},{_SOUNDS}" if sounds else _CONTAINERS
    options = {"format_whitelist": formats, "protocol_whitelist": "none"}
    return av.open(io.BytesIO(data), options=options, metadata_errors="ignore")
