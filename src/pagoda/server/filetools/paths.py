"""Paths as calls name them, and files that are opened without waiting for anybody."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


class RefusedError(Exception):
    """What a model is told in place of an answer."""


def resolved(path: str, cwd: str) -> Path:
    """An absolute path; `~` is the user's home. Raises RefusedError where it names nothing."""
    if not path.strip() or "\0" in path:
        raise RefusedError("The path is empty or has a NUL character; name a file or a folder.")
    if not os.path.isdir(cwd):
        raise RefusedError(f"The working directory {cwd} is not there; name another one.")
    return Path(cwd, os.path.expanduser(path))


def open_regular(path: Path) -> BinaryIO:
    """A file to read. Raises RefusedError for a pipe, a device or a folder, which might never
    end, and OSError."""
    check_regular(path, path.stat().st_mode)
    # It may have become a pipe since: opening one waits for a writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        check_regular(path, os.fstat(file.fileno()).st_mode)
    except RefusedError:
        file.close()
        raise
    return file


def check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise RefusedError(f"{path} is a folder; file_glob_search lists what is in it.")
    if not stat.S_ISREG(mode):
        raise RefusedError(f"{path} is a pipe, a socket or a device; only files can be used.")


def is_binary(start: bytes) -> bool:
    return b"\0" in start
