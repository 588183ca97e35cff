"""What `git clone` leaves of a large file where Git LFS has not fetched it: a few lines of text."""

from pagoda.base.errors import CheckpointError

START = 64
"""Bytes of a file that tell."""
_BEGINNING = b"version https://git-lfs.github.com/spec/"
_LEAST_BYTES = 8


def refuse_pointer(what: object, start: bytes | bytearray) -> None:
    """CheckpointError where the first bytes of a file, 8 or more, are a pointer's; `what` names
    the file."""
    head = bytes(start[: len(_BEGINNING)])
    if len(head) >= _LEAST_BYTES and _BEGINNING.startswith(head):
        raise CheckpointError(
            f"{what} is a Git LFS pointer, not the file itself; `git lfs pull` in its folder "
            "fetches it."
        )
