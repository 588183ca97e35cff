"""The folder of experts that are read from disk: a folder for each model, and in it a file for each
parameter, packed as the kernels take it.

They are written when a mixture is loaded that memory is too small for, and stay for its next start.
Who needs room on the disk removes those of others that nobody uses.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path

from pagoda.base import env
from pagoda.base.disk import free_bytes, is_memory
from pagoda.base.errors import CapacityError
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.weights.identity import add_identity

log = get_logger(__name__)

# Says which model's they are. Whoever uses them has it locked; its time is that of the last start.
_NOTE = "model"
# The disk is for others, too.
_LEFT = 1 << 30


def expert_files_dir() -> Path:
    """Where all of them are; not created here."""
    return env.cache_dir() / "experts"


class ExpertFolder:
    """One model's, in use for as long as this is there."""

    def __init__(self, model: Path, weights: Sequence[Path], contents: str):
        """`contents`: what packed experts depend on beside the model's weight files. CapacityError
        where there can be no such folder, or only one in memory."""
        digest = hashlib.sha256(contents.encode())
        for path in weights:
            add_identity(path, digest.update)
        self.path = expert_files_dir() / digest.hexdigest()[:32]
        note = self.path / _NOTE
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = note.open("a")
            weakref.finalize(self, file.close)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)
            if not note.stat().st_size:
                print(model.absolute(), file=file, flush=True)
            os.utime(note)
        except OSError as error:
            raise CapacityError(
                f"Memory is too small for all experts, and those on disk cannot be in {self.path}: "
                f"{error.strerror}. Set PAGODA_CACHE to a folder that can be written to."
            ) from error
        if is_memory(self.path):
            raise CapacityError(
                f"Memory is too small for all experts, and files in {self.path} are in memory, too "
                "(tmpfs). Set PAGODA_CACHE to a folder on a disk."
            )

    def make_room(self, nbytes: int) -> None:
        """Have so many bytes free on its disk; CapacityError where that cannot be."""
        for other in [None, *self._others()]:
            if other is not None:
                _remove(other)
            free = free_bytes(self.path)
            if free is None or free >= nbytes + _LEFT:
                return
        raise CapacityError(
            f"Memory is too small for all experts, and {format_bytes(nbytes)} of them are to be "
            f"written to {self.path}, whose disk has {format_bytes(free or 0)} free and keeps "
            f"{format_bytes(_LEFT)}. Free some, or set PAGODA_CACHE to a folder of another disk."
        )

    def _others(self) -> list[Path]:
        """The folders of other models, the longest unused first."""
        found = [folder for folder in _folders() if folder != self.path]
        return sorted(found, key=lambda folder: (folder / _NOTE).stat().st_mtime)


def remove_orphans() -> int:
    """Remove the experts of models whose files are gone; how many bytes that frees."""
    gone = [folder for folder in _folders() if not Path((folder / _NOTE).read_text()[:-1]).exists()]
    return sum(_remove(folder) for folder in gone)


def _folders() -> list[Path]:
    return [note.parent for note in expert_files_dir().glob(f"*/{_NOTE}")]


def _remove(folder: Path) -> int:
    """Remove a folder that nobody uses; how many bytes that frees."""
    try:
        with (folder / _NOTE).open() as note:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            freed = sum(file.stat().st_size for file in folder.iterdir())
            shutil.rmtree(folder)
    except OSError as error:
        log.debug("%s stays: %s.", folder, error)
        return 0
    log.info("%s is removed: experts that no engine reads from disk.", folder)
    return freed
