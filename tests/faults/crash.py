"""Ends children of itself at the Nth call of each kind that keeps something, in the way of a crash
of the machine: what was not synced is lost.

`python crash.py FOLDER` leaves folders named STORE.KIND.N.LOSS, as a next start would find them;
those of calls that never came end with `.over`: the writer was told that all is kept.
"""

import itertools
import os
import stat
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.faults.faults import Faults
from tests.faults.stores import STORES, Store

LOSSES = ("kept", "cut", "zeros")
KINDS = ("write", "fsync", "rename", "open")
_OVER = 9


class Disk:
    """Knows what is on the disk for good: bytes and names that were synced."""

    def __init__(self, loss: str):
        self._loss = loss
        self._files: dict[int, int] = {}
        """Inode -> a descriptor of it."""
        self._sizes: dict[int, int] = {}
        self._renames: list[tuple[str, str, str | None]] = []
        """From, to, and a link to what was there."""

    def opened(self, file: Any) -> None:
        number = os.fstat(file.fileno()).st_ino
        self._files.setdefault(number, os.dup(file.fileno()))
        self._sizes.setdefault(number, os.fstat(file.fileno()).st_size)

    def fsync(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            folder = os.readlink(f"/proc/self/fd/{descriptor}")
            self._renames = [
                entry for entry in self._renames if os.path.dirname(entry[1]) != folder
            ]
        self._sizes[facts.st_ino] = facts.st_size

    def replace(self, source: Any, target: Any) -> None:
        before = None
        if os.path.exists(target):
            before = f"{target}.before"
            os.link(target, before)
        _REPLACE(source, target)
        self._renames.append((str(source), str(target), before))

    def crash(self) -> None:
        if self._loss != "kept":
            for number, descriptor in self._files.items():
                size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, min(size, self._sizes[number]))
                if self._loss == "zeros":
                    os.ftruncate(descriptor, size)
        if self._loss == "cut":  # with zeros, names reached the disk before the bytes
            for source, target, before in reversed(self._renames):
                _REPLACE(target, source)
                if before is not None:
                    _REPLACE(before, target)


_REPLACE = os.replace


def end_at(store: Store, folder: Path, kind: str, number: int, loss: str) -> bool:
    """Whether there was such a call."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _live(store, folder, kind, number, loss)
            code = _OVER
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, _OVER):
        sys.exit(f"{store.name} failed on its own.")
    return code == 0


def _live(store: Store, folder: Path, kind: str, number: int, loss: str) -> None:
    folder.mkdir()
    store.write(folder, "old")
    disk = Disk(loss)

    def die() -> BaseException:
        disk.crash()
        os._exit(0)

    faults = Faults(kind, number, die)
    opened = faults.open

    def watched(*args: Any, **options: Any) -> Any:
        file = opened(*args, **options)
        if file.writable():
            disk.opened(file)
        return file

    faults.open = watched  # type: ignore[method-assign]  # to watch it
    with (
        patch.object(os, "fsync", disk.fsync),
        patch.object(os, "replace", disk.replace),
        faults.installed(),
    ):
        store.write(folder, "new")
    disk.crash()


def main(root: Path) -> None:
    os.fsync = lambda descriptor: None  # the disk is played, and need not be waited for
    for store, kind, loss in itertools.product(STORES, KINDS, LOSSES):
        for number in itertools.count(1):
            folder = root / f"{store.name}.{kind}.{number}.{loss}"
            if not end_at(store, folder, kind, number, loss):
                folder.rename(f"{folder}.over")
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
