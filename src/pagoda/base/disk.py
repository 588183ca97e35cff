"""How fast a disk reads, and how much room it has."""

import mmap
import os
import time
from pathlib import Path

from pagoda.base.machine import PROC, read_text

# Long enough for a disk of any kind to get going, short enough not to be waited for.
_SECONDS = 0.04
_CHUNK = 4 << 20


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


def free_bytes(folder: Path) -> int | None:
    """Free bytes of a folder's disk, which need not be there yet; None where that is not known."""
    for existing in (folder, *folder.parents):
        try:
            stat = os.statvfs(existing)
        except OSError:
            continue
        return stat.f_bavail * stat.f_frsize
    return None


def is_memory(folder: Path) -> bool:
    """Whether a folder's files are kept in memory (tmpfs), as far as Linux says."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in (read_text(PROC / "self/mountinfo") or "").splitlines():
        mounted, _, kind = line.partition(" - ")
        if mounted.split()[2] == number:
            return kind.split()[0] in ("tmpfs", "ramfs")
    return False


def _read_ends(handle: int, pages: mmap.mmap, seconds: float) -> list[float]:
    """When reading began and when each whole chunk was there, for about so long: two at least."""
    ends = [time.perf_counter()]
    while len(ends) < 3 or ends[-1] - ends[0] < seconds:
        if os.preadv(handle, [pages], _CHUNK * (len(ends) - 1)) < _CHUNK:
            break
        ends.append(time.perf_counter())
    return ends
