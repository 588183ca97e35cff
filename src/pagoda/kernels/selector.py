"""Which form of the ops computes on a tensor: the CPU's kernels, Triton's, or the reference."""

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from pagoda.base.log import get_logger
from pagoda.kernels import cpu
from pagoda.kernels.protocol import Ops
from pagoda.kernels.ref import ops as reference

if TYPE_CHECKING:
    from pagoda.kernels.cpu.ops import CpuOps

log = get_logger(__name__)

_REFERENCE: Ops = reference


def form(x: torch.Tensor) -> Ops:
    """The fastest ops on activations like `x`, of any shape."""
    if x.is_cpu:
        return (cpu.native_ops() if x.dtype == torch.float32 else None) or _REFERENCE
    return _gpu_ops(x.device, x.dtype) or _REFERENCE


def native(x: torch.Tensor) -> "CpuOps | Any | None":
    """The fast form of ops on activations like `x`, of any shape, with the methods of `CpuOps`;
    None where there is none."""
    if x.is_cpu:
        return cpu.native_ops() if x.dtype == torch.float32 else None
    return _gpu_ops(x.device, x.dtype)


def native_form(device: torch.device, dtype: torch.dtype) -> "CpuOps | Any | None":
    """As `native`, of activations of `dtype` on `device`."""
    if device.type == "cpu":
        return cpu.native_ops() if dtype == torch.float32 else None
    return _gpu_ops(device, dtype)


@cache
def _gpu_ops(device: torch.device, dtype: torch.dtype) -> Ops | None:
    if device.type not in ("cuda", "meta"):  # tensors without memory stand for a GPU's
        return None
    if find_spec("triton") is None:
        log.warning(
            "The package triton is missing: on this GPU all is computed with torch, several times "
            "slower. Install it (pip install triton)."
        )
        return None
    from pagoda.kernels.triton import ops

    reason = ops.declines(device, dtype)
    if reason is None:
        return ops
    log.info("%s is computed with torch on %s: %s.", dtype, device, reason)
    return None
