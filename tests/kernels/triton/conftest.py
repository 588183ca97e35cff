"""Triton's kernels on the GPU where there is one, else interpreted on the CPU.

Files here begin with `pytest.importorskip("triton", reason="triton is not installed")`.
"""

import importlib.util
import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined, so in front of every import of one.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def played_gpu(device: str) -> None:
    """For tests of kernels as other GPUs have them: one that is there is what it is."""
    if device == "cuda":
        pytest.skip("plays other GPUs on a CPU")


@pytest.fixture(autouse=True)
def poisoned_outputs(device: str) -> Iterator[None]:
    """In torch's deterministic mode `torch.empty` is full of NaN; on CUDA some ops refuse it."""
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(device == "cpu")
    # The interpreter computes with numpy, which tells of infinities and NaN where a GPU does not.
    with np.errstate(all="ignore"):
        yield
    torch.use_deterministic_algorithms(False)


def _mend_interpreter() -> None:
    """Up to Triton 3.9 its interpreter multiplies matrices of bfloat16 as the integers that it
    keeps them in, and prepares its language anew for each call within a kernel, which takes a
    quarter of the time of these tests; before 3.9 it cannot count with numpy 2.4."""
    import triton.language as tl
    from triton.runtime import interpreter

    def widened(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    patch_language = interpreter._patch_lang
    create_dot = interpreter.InterpreterBuilder.create_dot
    patch_tensor = interpreter._patch_lang_tensor

    def wide_dot(self, a, b, *rest):
        return create_dot(self, widened(a), widened(b), *rest)

    def patch_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    whole = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def patch_once(function):
        launched = tl.core.is_builtin(tl.core.load)
        return patch_language(whole) if launched else None

    interpreter._patch_lang = patch_once
    interpreter.InterpreterBuilder.create_dot = wide_dot
    interpreter._patch_lang_tensor = patch_index


if importlib.util.find_spec("triton") is not None:
    _mend_interpreter()
