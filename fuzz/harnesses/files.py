"""A file with the input, for readers that take paths."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="pagoda-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def written(name: str, data: bytes) -> Path:
    """A new inode each time: the one before may still be mapped."""
    path = folder() / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path
