"""The garbage collector of a process of Pagoda's own while it starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Around imports. What they make stays, and collections would look through it again and again:
    a tenth of what they take. Behind the block they leave alone whatever the process has."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
