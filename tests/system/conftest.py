import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.harness import Served


@contextlib.contextmanager
def starter() -> Iterator[Callable[..., Served]]:
    """Start servers that end, at the latest, with the block."""
    with contextlib.ExitStack() as stack:

        def start(*words: object) -> Served:
            # Short: a socket's path has at most 107 bytes.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pg", dir="/tmp"))
            return stack.enter_context(Served(Path(folder), *map(str, words)))

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with starter() as start:
        yield start


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[Served]:
    """For tests that leave the server as it is."""
    with starter() as start:
        served = start(smollm2_gguf)
        served.wait_ready(60)
        yield served
