"""Files that are there whole or not at all, whatever ends the process or the machine meanwhile."""

import contextlib
import errno
import fcntl
import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put `data` in the place of `path`; from then on it outlives a power cut, and before, the old
    contents stay. `mode` is that of the new file, less the umask. Raises OSError."""
    _remove_left(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        try:
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb"
            ) as file:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                file.write(data)
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


def sync_folder(folder: Path) -> None:
    """Put the names of a folder on the disk; what was renamed is only then where it is called."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # may be written to but not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def _remove_left(path: Path) -> None:
    """Remove what writers of the file left when they were killed: nobody holds its lock."""
    with contextlib.suppress(OSError):
        for partial in path.parent.glob(f".{path.name}.*.partial"):
            with contextlib.suppress(OSError), partial.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()
