"""The disk that models lie on: room, and how fast it reads."""

import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pagoda.weights.hub.store import models_dir

# Long enough for a disk of any kind to get going, short enough not to be waited for.
_SECONDS = 0.04
_CHUNK = 4 << 20
_MOST_FILES = 500  # looked at in the cache for one that is worth reading


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
    try:
        with mmap.mmap(-1, _CHUNK) as pages:  # aligned, as O_DIRECT wants it
            ends = _read_ends(handle, pages, seconds) if direct else []
    except OSError:
        return None
    finally:
        os.close(handle)
    if len(ends) < 2:
        return None
    # The first read of several also waits for the disk to wake and the pages to be made.
    first = 1 if len(ends) > 2 else 0
    return _CHUNK * (len(ends) - 1 - first) / (ends[-1] - ends[first])


def _read_ends(handle: int, pages: mmap.mmap, seconds: float) -> list[float]:
    """When reading began and when each whole chunk was there, for about so long."""
    ends = [time.perf_counter()]
    while ends[-1] - ends[0] < seconds:
        if os.preadv(handle, [pages], _CHUNK * (len(ends) - 1)) < _CHUNK:
            break
        ends.append(time.perf_counter())
    return ends


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
