"""The disk that models lie on: room, and how fast it reads."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pagoda.base.disk import free_bytes, read_speed
from pagoda.weights.hub.store import models_dir

_MOST_FILES = 500  # looked at in the cache for one that is worth reading


@dataclass(frozen=True)
class Disk:
    folder: str
    """Where models are kept."""
    free: int | None
    """Free bytes there."""
    read_speed: float | None
    """Bytes per second, an estimate from a few MB of `read_file`; None where nothing was read."""
    read_file: str | None


def probe_disk(model_file: Path | None = None) -> Disk:
    """The disk of `model_file`, or of the model cache and the largest file there."""
    folder = models_dir() if model_file is None else model_file.parent
    file = _largest_file(folder) if model_file is None else model_file
    speed = None if file is None else read_speed(file)
    return Disk(str(folder), free_bytes(folder), speed, str(file) if speed else None)


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
