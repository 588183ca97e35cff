"""The folder of fetched models: where it is, and how two processes share it."""

import contextlib
import errno
import fcntl
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from pagoda.base import env
from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.base.words import say

_log = get_logger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is being fetched, bytes done and bytes in all; may be called from any thread."""


def models_dir() -> Path:
    """Where Pagoda keeps the models that no other tool's cache holds; not created here."""
    return env.cache_dir() / "models"


HEADERS_ONLY = "HEADERS-ONLY.json"
"""Lies where weight files end with their headers, and zeros stand for the weights."""


def headers_dir() -> Path:
    """Where headers of models lie that are not on this machine; not created here."""
    return models_dir() / "headers"


def is_headers_only(path: Path) -> bool:
    """Whether a file is one of those that were fetched for planning."""
    return any((folder / HEADERS_ONLY).is_file() for folder in path.resolve().parents)


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the right to write `target`; a second process waits here until the first is done.

    The kernel drops the lock with its process, so a killed one leaves nothing to clear away.
    """
    folder = env.cache_dir() / "locks"
    key = hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:32]
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{key}.lock").open("wb")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("Waiting for another process that is fetching %s.", target.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a SourceError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise SourceError(
            say(
                "{folder} cannot be written: {reason}. Free some space, or name another folder "
                "with the variable PAGODA_CACHE."
                if error.errno in (errno.ENOSPC, errno.EDQUOT)
                else "{folder} cannot be written: {reason}. Name another folder with the variable "
                "PAGODA_CACHE.",
                folder=folder,
                reason=reason,
            )
        ) from error


def reason_of(error: Exception) -> str:
    """What a failed request says of itself, on one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
