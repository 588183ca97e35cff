"""Files that are there whole or not at all, whatever ends the process or the machine meanwhile."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_ENDING = ".partial"


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends without an error.

    From then on the new contents outlive a power cut; before, the old ones stay. `mode` is that of
    the new file, less the umask. Raises OSError where it cannot be written.
    """
    remove_partials(path.parent, path.name)
    try:
        partial, file = _open_partial(path, mode)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        # Nobody knows the partial file's name.
        error.filename, error.filename2 = str(path), None
        raise


def write_whole(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """`data` as a `whole_file`; a text as UTF-8."""
    with whole_file(path, mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def put_in_place(finished: Path, path: Path) -> None:
    """Rename a file that was written elsewhere on the same disk, once its bytes are on it."""
    with finished.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(finished, path)
    sync_folder(path.parent)


def remove_partials(folder: Path, name: str = "") -> None:
    """Remove what writers of the file, or of any in the folder, left when they were killed; what is
    still written to stays. Never fails: what is left is in nobody's way."""
    start = f".{name}." if name else ""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(start) and entry.name.endswith(_ENDING):
                _remove_left(Path(entry.path))


def sync_folder(folder: Path) -> None:
    """Put the names of a folder on the disk; what was renamed is only then where it is called.

    Of one that may be written to but not listed they reach it when the system likes.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def _open_partial(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, locked: the kernel drops the lock with its process."""
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_ENDING}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = os.fdopen(os.open(partial, flags, mode), "wb")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # taken for one left behind before it was locked


def _remove_left(partial: Path) -> None:
    with contextlib.suppress(OSError), partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()
