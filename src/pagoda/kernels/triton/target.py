"""What the kernels need to know of the GPU that they run on or are compiled for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

SHARED_MEMORY = {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB that one program may ask for, by compute capability (CUDA C++ programming guide, table of
technical specifications)."""
H100_PROCESSORS = 132
"""Stand for those of a GPU that is not there."""

_assumed, _assumed_processors = 90, H100_PROCESSORS


def capability(x: torch.Tensor) -> int:
    """The compute capability of the GPU that holds `x`, of any shape, as 90 for 9.0; for
    other tensors the one that is assumed."""
    return capability_of(x.device)


def capability_of(device: torch.device) -> int:
    """As `capability`."""
    return _capability(device.index) if device.type == "cuda" else _assumed


def processors(x: torch.Tensor) -> int:
    """Streaming multiprocessors of the GPU that holds `x`, of any shape."""
    return processors_of(x.device)


def processors_of(device: torch.device) -> int:
    """As `processors`."""
    return _processors(device.index) if device.type == "cuda" else _assumed_processors


@contextmanager
def assuming(capability: int, processors: int = H100_PROCESSORS) -> Iterator[None]:
    """Treat tensors of a CPU, and those without memory, as if they lay on such a GPU."""
    global _assumed, _assumed_processors
    before = _assumed, _assumed_processors
    _assumed, _assumed_processors = capability, processors
    try:
        yield
    finally:
        _assumed, _assumed_processors = before


@cache
def _capability(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def offers(capability: int, dtype: torch.dtype) -> str | None:
    """Why no kernel takes activations of `dtype` on a GPU of `capability`; None where all do."""
    if capability < min(SHARED_MEMORY):
        return f"sm_{capability} is older than sm_{min(SHARED_MEMORY)}"
    if dtype == torch.bfloat16 and capability < 80:
        return "bfloat16 needs sm_80 or later"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"{dtype} is no type of activations"
    return None


def declines(x: torch.Tensor) -> str | None:
    """Why no kernel takes activations like `x` (any shape), which are on a GPU, or None."""
    return offers(capability(x), x.dtype)
