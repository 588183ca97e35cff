"""The disk that models lie on: room, and how fast it reads."""

import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pagoda.weights.store import models_dir

# Long enough for a disk of any kind to get going, short enough not to be waited for.
_SECONDS = 0.04
_CHUNK = 4 << 20
_MOST_FILES = 2000  # looked at in the cache for one that is worth reading


@dataclass(frozen=True)
class Disk:
    folder: str
    """Where models are kept."""
    free: int | None
    """Bytes."""
    read_speed: float | None
    """Bytes per second, an estimate from a few MB of `read_file`; None where nothing was read."""
    read_file: str | None


def probe_disk(model_file: Path | None = None) -> Disk:
    """The disk of `model_file`, or of the model cache and the largest file there."""
    folder = models_dir() if model_file is None else model_file.parent
    file = _largest_file(folder) if model_file is None else model_file
    speed = None if file is None else read_speed(file)
    return Disk(str(folder), _free(folder), speed, str(file) if speed else None)


def read_speed(file: Path, seconds: float = _SECONDS) -> float | None:
    """Bytes per second that the disk gives, read past the page cache for about so long.

    None where the file is too short for an answer or its file system only reads through memory.
    """
    direct = getattr(os, "O_DIRECT", 0)
    try:
        handle = os.open(file, os.O_RDONLY | direct)
    except OSError:
        return None
    done, begun = 0, time.perf_counter()
    spent = 0.0
    try:
        with mmap.mmap(-1, _CHUNK) as pages:  # aligned, as O_DIRECT wants it
            while spent < seconds:
                count = os.preadv(handle, [pages], done)
                done += count
                spent = time.perf_counter() - begun
                if count < _CHUNK:
                    break
    except OSError:
        return None
    finally:
        os.close(handle)
    return done / spent if direct and done >= _CHUNK else None


def _free(folder: Path) -> int | None:
    for existing in (folder, *folder.parents):
        try:
            stat = os.statvfs(existing)
        except OSError:
            continue
        return stat.f_bavail * stat.f_frsize
    return None


def _largest_file(folder: Path) -> Path | None:
    sizes = dict(islice(_sizes(folder), _MOST_FILES))
    return max(sizes, key=lambda path: sizes[path], default=None)


def _sizes(folder: Path) -> Iterator[tuple[Path, int]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                yield path, path.stat().st_size
            except OSError:
                continue
