"""What a model's weight files are told apart by, without reading all of them."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

# Of each file so many pieces are looked at, beside its size: reading all of it takes as long as
# loading it.
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14


def add_identity(path: Path, update: Callable[[bytes], None]) -> None:
    """Have `update` (of a hash) take the file's name, its size and samples of its bytes."""
    size = path.stat().st_size
    update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            update(file.read(_SAMPLE_BYTES))


def weights_identity(paths: Iterable[Path]) -> str:
    """One digest of all these files, the same on every machine that has them."""
    digest = hashlib.sha256()
    for path in paths:
        add_identity(path, digest.update)
    return digest.hexdigest()
