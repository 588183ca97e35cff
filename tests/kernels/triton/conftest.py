"""Triton's kernels on the GPU where there is one, else interpreted on the CPU.

Files here begin with `pytest.importorskip("triton", reason="triton is not installed")`.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined, so in front of every import of one.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def pytest_collection_modifyitems(items):
    """The interpreter computes with numpy, which warns of infinities where a GPU does not."""
    for item in items:
        if item.path.parent == item.config.rootpath / "tests" / "kernels" / "triton":
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
